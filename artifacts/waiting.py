"""Waiting: for what may succeed another time, and for what is under way."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator


class Backoff:
    """The pauses after tries that failed: each is longer than the one before, up to a longest.

    Each is cut at random, so that many who wait for one thing, and were refused together, don't
    come back together.
    """

    def __init__(
        self,
        first_s: float,
        longest_s: float = math.inf,
        *,
        growth: float = 2.0,
        cut: float = 0.5,
        limit_s: float = math.inf,
    ) -> None:
        """Begin now; `limit_s` are the seconds for all tries and pauses together.

        Each pause is `growth` times the one before, and loses at most the share `cut` of itself.
        """
        self.next_s = first_s
        self._longest_s = longest_s
        self._growth = growth
        self._cut = cut
        self._limit_s = limit_s
        self._began = time.monotonic()

    @property
    def waited_s(self) -> float:
        """The seconds since the beginning."""
        return time.monotonic() - self._began

    @property
    def are_over(self) -> bool:
        """Return whether the next pause, of at most `next_s` seconds, might end after the limit."""
        return self.waited_s + self.next_s > self._limit_s

    def take(self, most_s: float = math.inf) -> None:
        """Wait for the next pause, at most `most_s` seconds, whether the limit is over or not."""
        time.sleep(min(self.draw(), most_s))

    def draw(self) -> float:
        """Return the seconds of the next pause, for whoever waits in a way of its own."""
        seconds = random.uniform(1 - self._cut, 1) * self.next_s  # noqa: S311 - no secret
        self.next_s = min(self._growth * self.next_s, self._longest_s)
        return seconds


def poll_for(limit_s: float, every_s: float) -> Iterator[None]:
    """Give a turn to look at something now, and again `every_s` seconds after each look.

    The last one begins at most `every_s` seconds after `limit_s` are over; there is always one.
    """
    deadline = time.monotonic() + limit_s
    while True:
        yield
        if time.monotonic() > deadline:
            return
        time.sleep(every_s)
