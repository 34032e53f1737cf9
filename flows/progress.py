"""Tell whoever watches which step runs: plain log records, which the command line can draw."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LOGGER = logging.getLogger("handoff.progress")


@dataclass
class Announced:
    """A step under way; `seconds` may be set to what it took where it ran, waiting left out."""

    seconds: float | None = None


@contextmanager
def announced(step: str, bound: str = "", does: str = "") -> Iterator[Announced]:
    """Log that `step` begins, and that it is done or refused, with the seconds it took.

    Records carry `step`, `phase` (`begin`, `done`, `failed`), `seconds` and `does`, what the step
    is there for, as attributes, and the first one `bound`: what the step may take at most, where it
    has a budget.
    """
    began = time.monotonic()
    announcement = Announced()
    text = f"{step}: {bound} ..." if bound else f"{step} ..."
    extra = {"step": step, "phase": "begin", "seconds": 0.0, "bound": bound, "does": does}
    LOGGER.info(text, extra=extra)
    try:
        yield announcement
    except BaseException:
        seconds = time.monotonic() - began
        extra = {"step": step, "phase": "failed", "seconds": seconds, "does": does}
        LOGGER.info("%s: refused after %.1f s", step, seconds, extra=extra)
        raise
    waited = time.monotonic() - began
    seconds = waited if announcement.seconds is None else announcement.seconds
    extra = {"step": step, "phase": "done", "seconds": seconds, "does": does}
    LOGGER.info("%s: %.1f s", step, seconds, extra=extra)
