"""Kills at every operation: a process that ends itself by SIGKILL at its k-th change of the disk.

What is counted are the calls by which a file or a folder appears, changes its name or goes, and the
commits of MLflow's database; what lies between two of them leaves the same on the disk.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from handoff.tasks.registry.messages import CatalogueJob
from tests.studies.outages.children import run_in_child
from tests.studies.outages.outcomes import InspectionResult, Outcome, judge
from tests.studies.outages.registries import Place, append_only, release, release_first, show
from tests.tasks.registry.registering import Here

_CHANGES = frozenset({"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass
class Tripwire:
    """Counts the changes of the disk below `root`, and ends the process before the `at`-th."""

    root: Path
    at: int = 0
    passed: list[str] = field(default_factory=list)

    def arm(self) -> None:
        """Begin to count; there is no way back, but for the process to end."""
        from sqlalchemy import event
        from sqlalchemy.engine import Engine

        sys.addaudithook(self._look)
        event.listen(Engine, "commit", lambda _: self._pass("commit"))

    def _look(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name in _CHANGES or (name == "open" and self._writes(arguments)):
            path = arguments[0]
            if isinstance(path, str | bytes | os.PathLike) and self._is_below(path):
                self._pass(name)

    @staticmethod
    def _writes(arguments: tuple[Any, ...]) -> bool:
        return isinstance(arguments[2], int) and bool(arguments[2] & _WRITING)

    def _is_below(self, path: str | bytes | os.PathLike[str]) -> bool:
        return os.fsdecode(path).startswith(f"{self.root}{os.sep}")

    def _pass(self, name: str) -> None:
        self.passed.append(name)
        if len(self.passed) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def count_changes(place: Place, work: Callable[[], object]) -> int:
    """Return how many changes `work` makes, and leave the registry as it was."""
    place.restore()

    def counted() -> int:
        wire = _arm_tripwire(place, 0)
        work()
        return len(wire.passed)

    ended = run_in_child(counted)
    assert isinstance(ended.value, int), ended
    place.restore()
    return ended.value


def kill_at(
    place: Place, where: str, work: Callable[[], object], again: Callable[[], object],
    *, at: int, versions: Sequence[int],
) -> Outcome:  # fmt: skip
    """Kill `work` before its `at`-th change, look, do `again`, and look once more."""
    place.restore()

    def killed() -> None:
        _arm_tripwire(place, at)
        work()

    ended = run_in_child(killed)
    # One change less than was counted is no kill: what MLflow does by itself may vary.
    found = run_in_child(lambda: judge(place, again, versions)).value
    assert isinstance(found, InspectionResult)
    return Outcome(
        "SIGKILL", where, "killed" if ended.signal == signal.SIGKILL else "well",
        half=tuple(found.half), lost=tuple(found.lost), litter=tuple(found.litter),
        for_collector=found.for_collector,
    )  # fmt: skip


def kill_everywhere(
    place: Place, where: str, work: Callable[[], object], again: Callable[[], object],
    *, versions: Sequence[int] = (1, 2), every: int = 1,
) -> Iterator[Outcome]:  # fmt: skip
    """Kill `work` at each change, or at each `every`-th, in turn."""
    for at in range(1, count_changes(place, work) + 1, every):
        yield kill_at(place, where, work, again, at=at, versions=versions)


def prepare(place: Place, *, is_committed: bool, is_shown: bool = True) -> None:
    """Release version 1; with `is_committed` version 2, too, which MLflow doesn't show yet."""

    def ready() -> None:
        release_first(place, is_shown=is_shown)
        if is_committed:
            append_only(place)
            place.keep()

    run_in_child(ready)


def parts_of_a_release(place: Place) -> dict[str, tuple[Callable[[], object], bool]]:
    """Return what is killed by the name of the place, and whether version 2 is committed before."""
    stores = place.registry.stores
    job = CatalogueJob(stores, place.model, 2, place.second.folder)
    return {
        "upload, draft, sign, commit, publish": (lambda: append_only(place), False),
        "catalogue, from the build": (lambda: Here().run(job), True),
        "catalogue, from the store": (lambda: show(stores, model=place.model), True),
        "a whole release": (lambda: release(place.registry, place.second), False),
    }


def _arm_tripwire(place: Place, at: int) -> Tripwire:
    scratch = place.root / "scratch"
    scratch.mkdir(exist_ok=True)
    # As a release does it, whose folder for such things goes with the build.
    tempfile.tempdir = str(scratch)
    wire = Tripwire(place.state, at)
    wire.arm()
    return wire
