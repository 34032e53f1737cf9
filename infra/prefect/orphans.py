"""End what a command started and could not end itself, because it was killed.

Prefect's embedded server is a process of its own, which would serve nobody for ever. A small
process waits until the command is gone, however that happens, and then ends what carries the
command's mark in its environment. (Steps need no such care: the kernel ends them,
`infra.engine.sandbox`.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

_MARK = "HANDOFF_STARTED_BY"
_PATIENCE_S = 5.0
_WATCHERS: list[subprocess.Popen[bytes]] = []


def end_orphans_later() -> None:
    """Start the process that waits; all that is started from now on is ended with this one."""
    mark = os.environ[_MARK] = uuid.uuid4().hex
    reading, writing = os.pipe()
    watcher = subprocess.Popen(
        [sys.executable, "-I", __file__, mark],
        stdin=reading, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        # What is sent to the command's group is not for this one.
        start_new_session=True,
    )  # fmt: skip
    os.close(reading)
    # The writing end is never closed nor inherited: its end is this process's.
    os.set_inheritable(writing, False)
    _WATCHERS.append(watcher)


def mark_variables() -> dict[str, str]:
    """Return the variables that a process has to have to be ended with this one."""
    return {_MARK: os.environ[_MARK]} if _MARK in os.environ else {}


def end_marked(mark: str) -> None:
    """End the processes with that mark: first with a request, after seconds without."""
    end_processes(lambda: find_marked(_MARK, mark))


def end_processes(find: Callable[[], Iterable[int]]) -> None:
    """End the processes that `find` finds, until it finds none: first with a request."""
    began = time.monotonic()
    # What the kernel holds fast for longer is ended by nobody.
    while (processes := list(find())) and time.monotonic() < began + 6 * _PATIENCE_S:
        is_late = time.monotonic() > began + _PATIENCE_S
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL if is_late else signal.SIGTERM)
            except ProcessLookupError:
                continue
        time.sleep(0.2)


def find_marked(variable: str, mark: str) -> dict[int, dict[str, str]]:
    """Return the environments of the other processes in which that variable is that mark."""
    environments = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                entries = os.fsdecode((folder / "environ").read_bytes()).split("\0")
            except OSError:  # it has ended, or is another user's
                continue
            environment = dict(entry.partition("=")[::2] for entry in entries)
            if environment.get(variable) == mark:
                environments[int(folder.name)] = environment
    return environments


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_marked(sys.argv[1])
