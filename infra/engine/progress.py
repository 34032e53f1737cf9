"""How far a step is, for whoever waits for it: `StepProcess` logs what a step process writes."""

from __future__ import annotations

import time
from collections.abc import Callable

# Called with the bytes that are done, and how many there are in all.
Listener = Callable[[int, int], None]

_PAUSE_S = 0.5
_LISTENERS: list[Listener] = []


def listen(listener: Listener) -> None:
    """Let `listener` follow the steps that run in this process from now on."""
    _LISTENERS.append(listener)


def counter(total: int) -> Callable[[int], None]:
    """Return what a step calls with the bytes done since the last call, of `total` in all.

    Listeners are called twice a second, and at the end.
    """
    done, notified_at = 0, 0.0

    def count(more: int) -> None:
        nonlocal done, notified_at
        done += more
        now = time.monotonic()
        if now - notified_at >= _PAUSE_S or done >= total:
            notified_at = now
            for listener in _LISTENERS:
                listener(done, total)

    return count
