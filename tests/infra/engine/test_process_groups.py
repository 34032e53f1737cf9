"""Groups of processes are ended by how many threads they have, whatever ran beside them before."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from handoff.infra.engine import process_groups
from handoff.infra.engine.process_groups import ProcessGroupWatcher

# Starts as many threads as a line says, each time; says so when they have started.
_STARTER = """
import sys, threading, time
for line in sys.stdin:
    for _ in range(int(line)):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    print("started", flush=True)
"""
_MAX_THREADS = 100


@contextmanager
def starter() -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, which starts threads on request."""
    process = subprocess.Popen(
        [sys.executable, "-c", _STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def start(process: subprocess.Popen[str], threads: int) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{threads}\n")
    process.stdin.flush()
    # Nothing, where it was ended meanwhile.
    assert process.stdout.readline() in {"started\n", ""}


def test_a_crowd_is_ended_after_a_larger_one_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_groups, "MAX_THREADS", _MAX_THREADS)
    watching = ProcessGroupWatcher()
    with starter() as few, starter() as many:
        with starter() as before:
            start(before, 5 * _MAX_THREADS)
            # From here on it looks, and finds that many threads.
            watching.watch(few.pid)
            watching.watch(many.pid)
            time.sleep(0.5)
        time.sleep(0.5)
        start(few, _MAX_THREADS // 2)
        start(many, 2 * _MAX_THREADS)
        assert many.wait(20) < 0
        assert watching.unwatch(many.pid)
        assert few.poll() is None
        assert not watching.unwatch(few.pid)
