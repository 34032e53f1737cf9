"""Threads that call a followed model without a pause, and count what they were answered."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from handoff.tasks.follow.following import FollowedModel
from tests.tasks.follow.versions import Shelf


@dataclass
class Load:
    """What the calls came to: how many, by the factor of the version that answered; what failed.

    `slowest_s` is the longest call's.
    """

    answered: Counter[float] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    @property
    def calls(self) -> int:
        return self.answered.total()


@contextmanager
def loaded(followed: FollowedModel, shelf: Shelf, threads: int = 8) -> Iterator[Load]:
    """Call from so many threads for the body; at its end all have ended.

    An answer that isn't one version's, from the first element to the last, counts as failed.
    """
    load, lock, over = Load(), threading.Lock(), threading.Event()

    def work() -> None:
        own = Load()
        while not over.is_set():
            began = time.perf_counter()
            try:
                (scores,) = followed(*shelf.call)
                own.slowest_s = max(own.slowest_s, time.perf_counter() - began)
                own.answered[shelf.factor_of(scores)] += 1
            except Exception as error:  # noqa: BLE001 - each is counted, whatever it is
                own.failed.append(f"{type(error).__name__}: {error}")
        with lock:
            load.answered += own.answered
            load.failed += own.failed
            load.slowest_s = max(load.slowest_s, own.slowest_s)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    try:
        yield load
    finally:
        over.set()
        for worker in workers:
            worker.join()


def memory_mb() -> dict[str, float]:
    """Return this process's resident memory in MB: its own pages, those in memory files, all."""
    sizes = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssShmem", "VmRSS"):
            sizes[name] = int(value.split()[0]) / 1000
    return sizes


def spoilers(shelf: Shelf, crashing: bytes) -> list[Callable[[float], int]]:
    """Return what releases a version that can't take over, each in another way."""
    half = (shelf.built.package / "model.so").read_bytes()
    return [
        lambda factor: shelf.release(factor, golden=1.5 * factor),
        lambda factor: shelf.release(factor, library=crashing),
        lambda factor: shelf.release(factor, library=b"no library"),
        lambda factor: shelf.release(factor, library=half[: len(half) // 2]),
    ]
