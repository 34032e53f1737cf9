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
MAX_THREADS = 1024 + 32 * (os.cpu_count() or 1)
_INTERVAL_S = 0.1
# Where the group and the number of threads are in /proc/PID/stat, counted from behind its name.
_GROUP_FIELD, _THREADS_FIELD = 2, 17


class ProcessGroupWatcher:
    """Watches groups of processes, in a thread that ends with this process."""

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._watched: set[int] = set()
        self._ended: set[int] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, group: int) -> None:
        """End the group once it has more than `MAX_THREADS` threads."""
        with self._lock:
            self._ended.discard(group)
            self._watched.add(group)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._poll, name="process groups", daemon=True
                )
                self._thread.start()

    def unwatch(self, group: int) -> bool:
        """Watch the group no longer; return whether it was ended for its number."""
        with self._lock:
            self._watched.discard(group)
            return group in self._ended

    def _poll(self) -> None:
        baseline = _count_threads()
        pause = threading.Event()
        while True:
            pause.wait(_INTERVAL_S)
            # One number shows that there is nothing to count. What the baseline counted may have
            # ended since: a group that was ended counts for a moment more.
            running = _count_threads()
            if running - baseline < MAX_THREADS // 2:
                baseline = min(baseline, running)
                continue
            for group, threads in _count_threads_by_group().items():
                if threads > MAX_THREADS:
                    self._end(group)
            baseline = _count_threads()

    def _end(self, group: int) -> None:
        with self._lock:
            if group in self._watched:
                self._ended.add(group)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)


PROCESS_GROUPS = ProcessGroupWatcher()


def _count_threads() -> int:
    """Return how many threads there are on the machine."""
    return int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[2])


def _count_threads_by_group() -> dict[int, int]:
    """Return how many threads each group of processes has."""
    threads: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            # Those that end meanwhile count no more.
            with contextlib.suppress(OSError, IndexError):
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                group = int(fields[_GROUP_FIELD])
                threads[group] = threads.get(group, 0) + int(fields[_THREADS_FIELD])
    return threads
