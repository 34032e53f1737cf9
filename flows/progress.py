"""Tell whoever watches which step runs: plain log records, which the command line can draw."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from handoff.artifacts.errors import HandoffError

LOGGER = logging.getLogger("handoff.progress")


@dataclass
class Announcement:
    """A step under way; `seconds` may be set to what it took where it ran, waiting left out."""

    seconds: float | None = None


@contextmanager
def announce_step(step: str, bound: str = "", does: str = "") -> Iterator[Announcement]:
    """Log that `step` begins, and that it is done, refused or ended by something else, and when.

    Records carry `step`, `phase` (`begin`, `done`, `failed`, `ended`), `seconds` and `does`, what
    the step is there for, as attributes, and the first one `bound`: what it may take at most, where
    it has a budget.
    """
    began = time.monotonic()
    announcement = Announcement()
    text = f"{step}: {bound} ..." if bound else f"{step} ..."
    extra = {"step": step, "phase": "begin", "seconds": 0.0, "bound": bound, "does": does}
    LOGGER.info(text, extra=extra)
    try:
        yield announcement
    except BaseException as error:
        # What was stopped, or crashed, refused nothing.
        is_refused = isinstance(error, HandoffError)
        phase, how = ("failed", "refused") if is_refused else ("ended", "ended")
        seconds = time.monotonic() - began
        extra = {"step": step, "phase": phase, "seconds": seconds, "does": does}
        LOGGER.info("%s: %s after %.1f s", step, how, seconds, extra=extra)
        raise
    waited = time.monotonic() - began
    seconds = waited if announcement.seconds is None else announcement.seconds
    extra = {"step": step, "phase": "done", "seconds": seconds, "does": does}
    LOGGER.info("%s: %.1f s", step, seconds, extra=extra)
