"""How much of the machine other work takes while something is timed."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
# Of the first line: user, nice, system; then interrupts, and what another guest of the host took.
_WORK = (0, 1, 2, 5, 6, 7)


class OthersAtWork:
    """Counts from when it is made; both clocks are the kernel's, in hundredths of a second."""

    def __init__(self) -> None:
        self._began, self._all, self._own = time.perf_counter(), _all_s(), _own_s()

    def processors(self) -> float | None:
        """Return how many processors others have taken on average since; None where none knows.

        What was so short that the kernel's clock ticked a few times is None, too.
        """
        passed = time.perf_counter() - self._began
        now = _all_s()
        if self._all is None or now is None or passed < 0.1:
            return None
        return round(max(0.0, (now - self._all) - (_own_s() - self._own)) / passed, 2)


def _all_s() -> float | None:
    """Return the seconds that all processors have worked; None where the system doesn't tell."""
    try:
        first = _STAT.read_text(encoding="ascii").partition("\n")[0].split()[1:]
        return sum(int(first[place]) for place in _WORK) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _own_s() -> float:
    spent = os.times()
    return spent.user + spent.system
