"""Faults of MLflow while a version is shown in it: refused, broken, silent, damaged, locked."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from handoff.artifacts.errors import NotShownYet
from handoff.artifacts.mlflow.registry import Catalogue
from tests.faulty_server import FOREVER, Fault
from tests.studies.outages.children import ChildResult, run_in_child, start_child
from tests.studies.outages.numbered_faults import NumberedFaults
from tests.studies.outages.outcomes import InspectionResult, Outcome, judge
from tests.studies.outages.registries import Place, make_place, release, release_first, show
from tests.studies.outages.s3_faults import NAMES

KINDS: tuple[Fault, ...] = (
    "unavailable", "broken", "reset", "hang", "lost_answer", "truncate", "flip_answer",
)  # fmt: skip
WHERE = "catalogue"
# A session with MLflow gives up after so many seconds here, and after 45 in a release.
PATIENCE_S = 3.0
# Longer than any release takes.
_LONG_S = 280.0


class MlflowBench:
    """An MLflow server behind a faulty one; each case is a model of its own."""

    def __init__(self, root: Path, address: str, server: NumberedFaults) -> None:
        """Use the server at `address`."""
        self.root = root
        self.address = address
        self.server = server
        self._cases = 0

    def count(self) -> int:
        """Return how many requests it takes to show a version."""
        place = self._place()
        self._run(lambda: release_first(place))
        self.server.begin()
        behind = self._behind(place)
        self._run(lambda: release(behind.registry, place.second))
        return self.server.passed

    def inject(self, fault: Fault, at: int, times: int) -> Outcome:
        """Do `fault` to the requests of a release from the `at`-th on, then sync."""
        place = self._place()
        self._run(lambda: release_first(place))
        self.server.begin(fault, at, times)
        behind = self._behind(place)
        ended = run_in_child(lambda: impatient(lambda: release(behind.registry, place.second)))
        self.server.begin()
        kind = f"{NAMES[fault]}, {'once' if times == 1 else 'for ever'}"
        return settle(place, kind, ended)

    def refuse(self) -> Outcome:
        """Let nobody listen where MLflow should be."""
        place = self._place()
        self._run(lambda: release_first(place))
        away = with_uri(place, "http://127.0.0.1:9")
        ended = run_in_child(lambda: impatient(lambda: release(away.registry, place.second)))
        return settle(place, "connection refused, for ever", ended)

    def _place(self) -> Place:
        self._cases += 1
        name = f"toy-{self._cases}"
        return make_place(self.root / name, tracking_uri=self.address, model=name)

    def _behind(self, place: Place) -> Place:
        return with_uri(place, self.server.url)

    @staticmethod
    def _run(work: Callable[[], object]) -> None:
        ended = run_in_child(work)
        assert ended.refusal is None, ended.refusal


def lock_database(place: Place, seconds: float | None) -> Outcome:
    """Let another process hold MLflow's SQLite database during a release.

    It does so for `seconds`; where they are None, until the release has ended.
    """
    place.restore()
    database = place.state / "mlflow" / "mlflow.db"
    holder = start_child(lambda: _hold(database, seconds or _LONG_S))
    time.sleep(0.3)
    ended = run_in_child(lambda: impatient(lambda: release(place.registry, place.second)))
    if seconds is None:
        holder.process.kill()
    holder.wait()
    kind = f"locked SQLite, {'for ever' if seconds is None else 'for a while'}"
    return settle(place, kind, ended)


def settle(place: Place, kind: str, ended: ChildResult) -> Outcome:
    """Inspect, run `handoff sync`'s step as the refusal has to advise, and inspect again."""
    again = run_in_child(lambda: judge(place, lambda: _sync(place), [1, 2]))
    found = again.value
    assert isinstance(found, InspectionResult)
    lost = list(found.lost)
    refusal = ended.refusal
    if refusal is not None and not _says_released(refusal, place.model):
        lost.append(f"not told as released: {refusal}")
    return Outcome(
        kind, WHERE, "refused" if refusal else "well", str(refusal or ""), tuple(found.half),
        tuple(lost), tuple(found.litter),
    )  # fmt: skip


def inject_everywhere(
    bench: MlflowBench, *, every: int = 1, lasting_every: int = 1,
    kinds: tuple[Fault, ...] = KINDS,
) -> Iterator[Outcome]:  # fmt: skip
    """Do each kind at each request, or at each `every`-th, once; and for ever from fewer on."""
    count = bench.count()
    yield bench.refuse()
    for fault in kinds:
        for at in range(1, count + 1, every):
            yield bench.inject(fault, at, 1)
        for at in range(1, count + 1, lasting_every):
            yield bench.inject(fault, at, FOREVER)


def _says_released(refusal: Exception, model: str) -> bool:
    text = str(refusal)
    return (
        isinstance(refusal, NotShownYet)
        and refusal.exit_code == 5
        and f"version 2 of {model} is released and can be pulled" in text
        and f"'handoff sync {model}'" in text
    )


def _sync(place: Place) -> None:
    show(place.registry.stores, model=place.model)


def impatient(work: Callable[[], object]) -> object:
    """Do `work` in this process with little patience for MLflow."""
    defaults: Any = Catalogue.__init__.__kwdefaults__
    defaults["patience_s"] = PATIENCE_S
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "1"
    return work()


def with_uri(place: Place, address: str) -> Place:
    """Return the same place with another MLflow."""
    stores = replace(place.registry.stores, tracking_uri=address)
    return replace(place, registry=replace(place.registry, stores=stores))


def _hold(database: Path, seconds: float) -> None:
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        time.sleep(seconds)
        connection.rollback()
