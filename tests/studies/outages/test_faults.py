"""S3 fails, MLflow fails, the disk is full: a release ends well, or is refused in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faulty_server import FOREVER, Fault
from tests.studies.outages import full_disks, mlflow_faults, s3_faults
from tests.studies.outages.children import run_in_child
from tests.studies.outages.numbered_faults import NumberedFaults
from tests.studies.outages.registries import make_place, release, release_first


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_faults.S3Bench]:
    """A registry with one version in S3, behind a faulty server."""
    with s3_faults.open_bench(tmp_path_factory.mktemp("bench") / "place") as bench:
        yield bench


@pytest.mark.server
@pytest.mark.long
def test_a_release_gets_through_faults_of_s3_that_pass(bench: s3_faults.S3Bench) -> None:
    count = bench.count(bench.release)
    assert count > 40
    # `make outages` does each kind at each request; here each meets others.
    for place, fault in enumerate(s3_faults.KINDS):
        at = 1 + place * count // 8
        outcome = bench.inject("release", bench.release, fault, at, 1)
        assert (outcome.ended, outcome.is_survived) == ("well", True), outcome.describe()


@pytest.mark.server
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("unavailable", marks=pytest.mark.long),
        pytest.param("reset", marks=pytest.mark.long),
        "flip_answer",
    ],
)
def test_a_release_that_s3_fails_for_good_is_refused_and_the_next_ends_well(
    bench: s3_faults.S3Bench, fault: Fault
) -> None:
    # In the middle: it makes almost a hundred requests.
    outcome = bench.inject("release", bench.release, fault, 48, FOREVER)
    assert (outcome.ended, outcome.is_survived) == ("refused", True), outcome.describe()


@pytest.mark.server
def test_a_pull_gets_through_faults_of_s3_that_pass(bench: s3_faults.S3Bench) -> None:
    kinds: tuple[Fault, ...] = ("broken", "truncate", "flip_answer", "reset")
    for place, fault in enumerate(kinds):
        bench.server.log.clear()
        # A pull makes a dozen requests and more.
        outcome = bench.inject("pull", bench.pull, fault, 1 + 3 * place, 1, again=bench.pull)
        assert fault in {request.fault for request in bench.server.log}
        assert outcome.half == outcome.litter == (), outcome.describe()
        assert outcome.ended == "well" or "not what its digest says" in outcome.message


def test_a_fault_is_done_to_the_requests_that_were_named() -> None:
    server = NumberedFaults("http://127.0.0.1:9")
    server.begin("reset", at=2, times=2)
    assert [server.take("GET", "/") for _ in range(4)] == [None, "reset", "reset", None]
    server.begin()
    assert server.take("GET", "/") is None


@pytest.mark.parametrize(
    ("seconds", "ending"),
    [pytest.param(1.0, "well", marks=pytest.mark.long), (None, "refused")],
)
def test_a_database_of_mlflow_that_is_locked_delays_the_catalogue_and_never_the_release(
    tmp_path: Path, seconds: float | None, ending: str
) -> None:
    place = make_place(tmp_path)
    run_in_child(lambda: release_first(place))
    outcome = mlflow_faults.lock_database(place, seconds)
    assert (outcome.ended, outcome.is_survived) == (ending, True), outcome.describe()


def test_an_mlflow_that_is_away_is_told_with_the_release_and_sync_makes_up_for_it(
    tmp_path: Path,
) -> None:
    place = make_place(tmp_path)
    run_in_child(lambda: release_first(place))
    away = mlflow_faults.with_uri(place, "http://127.0.0.1:9")
    ended = run_in_child(
        lambda: mlflow_faults.impatient(lambda: release(away.registry, place.second))
    )
    outcome = mlflow_faults.settle(place, "connection refused", ended)
    assert (outcome.ended, outcome.is_survived) == ("refused", True), outcome.describe()
    assert "version 2 of toy is released and can be pulled" in outcome.message
    assert "MLflow doesn't show it yet" in outcome.message
    assert "'handoff sync toy' makes up for it" in outcome.message


@pytest.mark.parametrize(
    ("where", "every"),
    [
        ("upload, ledger, copies", 9), ("pull", 3),
        pytest.param("making a key", 3, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_a_disk_that_is_full_refuses_and_once_there_is_room_all_is_well(
    tmp_path: Path, where: str, every: int
) -> None:
    try:
        disk = full_disks.small_disk(tmp_path / "disk")
        folder = disk.__enter__()
    except PermissionError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        place = make_place(folder, kept=tmp_path / "kept")
        run_in_child(lambda: release_first(place, is_shown=False))
        work, versions = full_disks.parts_on_a_disk(place)[where]
        outcomes = list(
            full_disks.fill_everywhere(
                place, where, work, again=work, versions=versions, every=every
            )
        )
    finally:
        disk.__exit__(None, None, None)
    assert "refused" in {outcome.ended for outcome in outcomes}
    assert [outcome.describe() for outcome in outcomes if not outcome.is_survived] == []
