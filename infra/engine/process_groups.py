"""Ends groups of processes that grow without bound: a fork bomb is over before the machine is.

What the kernel has against them doesn't hold root (RLIMIT_NPROC), or has to be set up by somebody
else (cgroups). A confined process can't leave its group (`infra.engine.seccomp`), so that one
signal ends all of it, however fast it grows.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

# What compilers and their threads come to on a large machine, several times over.
MOST_THREADS = 1024 + 32 * (os.cpu_count() or 1)
_EVERY_S = 0.1
# Where the processes of a group are told in /proc/PID/stat, counted from behind its name.
_GROUP, _THREADS = 2, 17


class ProcessGroups:
    """Watches groups of processes, in a thread that ends with this process."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._watched: set[int] = set()
        self._ended: set[int] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, group: int) -> None:
        """End the group once it has more than `MOST_THREADS` threads."""
        with self._lock:
            self._ended.discard(group)
            self._watched.add(group)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._look, name="process groups", daemon=True
                )
                self._thread.start()

    def leave(self, group: int) -> bool:
        """Watch the group no longer; tell whether it was ended for its number."""
        with self._lock:
            self._watched.discard(group)
            return group in self._ended

    def _look(self) -> None:
        usual = _all_threads()
        pause = threading.Event()
        while True:
            pause.wait(_EVERY_S)
            # One number tells that there is nothing to count. What was usual may have ended since:
            # a group that was ended counts for a moment more.
            running = _all_threads()
            if running - usual < MOST_THREADS // 2:
                usual = min(usual, running)
                continue
            for group, threads in _threads_of_groups().items():
                if threads > MOST_THREADS:
                    self._end(group)
            usual = _all_threads()

    def _end(self, group: int) -> None:
        with self._lock:
            if group in self._watched:
                self._ended.add(group)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)


CROWDS = ProcessGroups()


def _all_threads() -> int:
    """Return how many threads there are on the machine."""
    return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[2])


def _threads_of_groups() -> dict[int, int]:
    """Return how many threads each group of processes has."""
    found: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            # Those that end meanwhile count no more.
            with contextlib.suppress(OSError, IndexError):
                told = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                group = int(told[_GROUP])
                found[group] = found.get(group, 0) + int(told[_THREADS])
    return found
