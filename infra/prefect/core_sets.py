"""Core sets: the shares of a machine's cores on which the flow runs of one worker build.

A worker with several slots tells its flow runs the sets by an environment variable; each takes one
that is free and leaves it by ending, however it ends: what says that a set is taken is a lock on a
file. A compile beside another one on the same cores would take twice as long, and what is timed
there would say little.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from handoff.artifacts.files.locks import try_lock
from handoff.artifacts.waiting import looks

VARIABLE = "HANDOFF_CORE_SETS"
# A run whose end was asked for holds its cores until it has ended.
_PATIENCE_S = 60.0
_PAUSE_S = 0.5
# Held until this process ends.
_taken: list[int] = []


def share_out(cores: Iterable[int], shares: int) -> list[tuple[int, ...]]:
    """Return so many shares of the cores; those beside each other, which share caches, together."""
    ordered = sorted(cores)
    share, rest = divmod(len(ordered), shares)
    sets, begin = [], 0
    for index in range(shares):
        end = begin + share + (index < rest)
        sets.append(tuple(ordered[begin:end]))
        begin = end
    return sets


def as_variable(pool: str, sets: Sequence[Sequence[int]]) -> dict[str, str]:
    """Return the variable that tells a pool's flow runs the sets."""
    return {VARIABLE: " ".join([pool, *(",".join(map(str, cores)) for cores in sets)])}


def take_cores(environment: Mapping[str, str], folder: Path) -> tuple[int, ...]:
    """Let this process, and what it starts, use a free set alone; return it, () where none is told.

    `folder` holds the locks: one for all flow runs of a user on this machine. Where no set becomes
    free for a minute, which slots and sets of equal number don't let happen, all cores are used.
    """
    pool, *told = environment.get(VARIABLE, "").split() or [""]
    if not told:
        return ()
    for _ in looks(_PATIENCE_S, _PAUSE_S):
        for text in told:
            if _lock(folder / f"cores-{pool}-{text.replace(',', '_')}.lock"):
                cores = tuple(map(int, text.split(",")))
                os.sched_setaffinity(0, cores)
                return cores
    return ()


def _lock(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not try_lock(descriptor):
        os.close(descriptor)
        return False
    _taken.append(descriptor)
    return True
