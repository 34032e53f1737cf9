"""Whenever a registration is killed, nothing is half-visible, and the next one ends it."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from handoff.artifacts.release import copies
from tests.studies.outages import kills
from tests.studies.outages.children import run_in_child
from tests.studies.outages.outcomes import judge
from tests.studies.outages.registries import append_only, make_place, release, show

LEDGER = "upload, draft, sign, commit, publish"


def test_a_release_that_is_killed_at_a_change_of_the_store_is_ended_by_the_next(
    tmp_path: Path,
) -> None:
    place = make_place(tmp_path)
    work, _ = kills.parts_of_a_release(place)[LEDGER]
    kills.prepare(place, is_committed=False, is_shown=False)
    # `make outages` does so at each of them.
    outcomes = list(
        kills.kill_everywhere(place, LEDGER, work, lambda: append_only(place), every=16)
    )
    assert len(outcomes) > 4
    assert [outcome.ended for outcome in outcomes] == ["killed"] * len(outcomes)
    assert [outcome.describe() for outcome in outcomes if not outcome.is_survived] == []


@pytest.mark.parametrize(
    "where",
    [
        "catalogue, from the build",
        pytest.param("catalogue, from the store", marks=pytest.mark.long),
    ],
)
def test_a_catalogue_that_is_killed_shows_nothing_half_and_the_next_ends_it(
    tmp_path: Path, where: str
) -> None:
    place = make_place(tmp_path)
    work, is_committed = kills.parts_of_a_release(place)[where]
    kills.prepare(place, is_committed=is_committed)
    count = kills.count_changes(place, work)
    for at in (count // 2, count - 1):
        outcome = kills.kill_at(
            place, where, work, lambda: release(place.registry, place.second), at=at,
            versions=(1, 2),
        )  # fmt: skip
        assert outcome.ended == "killed", f"before change {at} of {count}"
        assert outcome.is_survived, outcome.describe()


def test_two_releases_that_were_killed_before_their_copies_are_both_made_up_for(
    tmp_path: Path,
) -> None:
    place = make_place(tmp_path)
    kills.prepare(place, is_committed=False, is_shown=False)
    append_only(place)
    place.registry.release("2026-11-29T00:00:00+00:00")
    for version in (2, 3):
        shutil.rmtree(Path(place.registry.stores.objects, f"models/toy/versions/{version}"))
    place.keep()

    def publish() -> None:
        copies.publish(place.registry.releases, "toy")

    outcomes = list(
        kills.kill_everywhere(place, "publish", publish, publish, versions=(1, 2, 3), every=8)
    )
    assert len(outcomes) > 2
    assert [outcome.describe() for outcome in outcomes if not outcome.is_survived] == []


def test_the_tripwire_ends_the_process_before_the_change_it_names(tmp_path: Path) -> None:
    def change() -> None:
        kills.Tripwire(tmp_path, 3).arm()
        for name in "abc":
            (tmp_path / name).mkdir()

    assert run_in_child(change).signal == signal.SIGKILL
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_database_whose_making_was_killed_is_made_by_the_next(tmp_path: Path) -> None:
    place = make_place(tmp_path)
    append_only(place)
    database = place.state / "mlflow" / "mlflow.db"

    def killed_in_the_middle() -> None:
        def is_half_made() -> bool:
            # What SQLite writes beside its file comes and goes.
            with suppress(FileNotFoundError):
                making = (database.parent / ".unfinished").glob("*")
                return sum(path.stat().st_size for path in making) > 300_000
            return False

        def watch() -> None:
            while not is_half_made():
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=watch, daemon=True).start()
        show(place.registry.stores)

    assert run_in_child(killed_in_the_middle).signal == signal.SIGKILL
    assert not database.exists()
    ended = run_in_child(lambda: judge(place, lambda: show(place.registry.stores), [1]))
    assert (ended.value.half, ended.value.lost, ended.value.litter) == ([], [], [])
