"""What holds a flood back: token buckets, and a memory of what was seen, both of bounded size."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_MOST_KEYS = 10_000
_MOST_SEEN = 20_000
_SEEN_S = 24 * 3600.0


class Buckets:
    """A token bucket for each key: so many requests a minute, and as many at once."""

    def __init__(self, per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Fill buckets with `per_minute` tokens a minute; `clock` is in seconds."""
        self._most = per_minute
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str = "") -> bool:
        """Take a token of a key's bucket; tell whether there was one."""
        now = self._clock()
        left, then = self._left.pop(key, (self._most, now))
        left = min(self._most, left + (now - then) * self._most / 60)
        self._left[key] = (left - 1 if left >= 1 else left, now)
        # Whoever comes with ever other addresses drives out others like them.
        while len(self._left) > _MOST_KEYS:
            self._left.popitem(last=False)
        return left >= 1


class Seen(Generic[T]):
    """What was accepted within a day, with the answer that was given."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Remember nothing yet."""
        self._clock = clock
        self._answers: OrderedDict[bytes, tuple[float, T]] = OrderedDict()

    def find(self, mark: bytes) -> T | None:
        """Return the answer that `mark` had; None where it wasn't seen."""
        found = self._answers.get(mark)
        return found[1] if found and self._clock() - found[0] < _SEEN_S else None

    def keep(self, mark: bytes, answer: T) -> None:
        """Remember the answer; the oldest are forgotten."""
        self._answers[mark] = (self._clock(), answer)
        while len(self._answers) > _MOST_SEEN:
            self._answers.popitem(last=False)


def address_group(address: str) -> str:
    """Return what counts as one sender: an IPv4 address, or the /64 of an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "?"
    if parsed.version == 4:
        return str(parsed)
    mapped = parsed.ipv4_mapped
    return str(mapped or ipaddress.ip_network((parsed, 64), strict=False))
