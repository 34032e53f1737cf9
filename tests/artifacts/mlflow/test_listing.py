"""MLflow mirrors what was released: whole or not at all, once, in order, whoever is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.mlflow.registry import Catalogue, EarlierVersionsMissing
from tests.artifacts.mlflow.listing import (
    EVIDENCE,
    Registrars,
    all_files,
    client_of,
    list_signed,
    signed_release,
)


def test_a_listed_release_has_everything_that_a_person_looks_for(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    signed = signed_release(tmp_path / "release", version=1)
    listing = list_signed(catalogue, signed)
    assert catalogue.list_versions("toy") == {1: listing}
    assert (listing.version, listing.release, listing.manifest) == (
        1, signed.release, signed.manifest.digest,
    )  # fmt: skip
    client, slug = client_of(catalogue), signed.manifest.targets[0].slug
    run = client.get_run(listing.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics[f"{slug}/speedup"] == 2.0
    assert run.data.metrics[f"{slug}/speedup_low"] == 1.9
    assert run.data.metrics[f"{slug}/max_abs"] == 3e-7
    assert run.data.metrics[f"{slug}/compile_s"] == 12.5
    assert run.data.params["passes"] == "fold-batch-norm"
    assert run.data.tags["handoff.commit"] == "0123abcd"
    assert {one.path for one in client.list_artifacts(listing.run_id)} == set(EVIDENCE)
    version = client.get_model_version("toy", "1")
    # First what people decide by, and last what programs know it by, which MLflow's list cuts.
    assert list(version.tags.items())[:5] == [
        ("verdict", "accepted, its numbers alone"), ("speed", "2.00×"), ("commit", "0123abcd"),
        ("targets", slug), ("handoff.version", "1"),
    ]  # fmt: skip
    assert version.description.startswith("Accepted, its numbers alone, 2.00× eager's speed.")
    assert "`handoff promote toy@1 --to production`" in version.description
    assert "handoff pull toy@1 --to toy" in version.description
    assert f"/runs/{listing.run_id}/artifacts/report.html" in version.description
    assert "- flow run: [7](https://prefect/flow-runs/7)" in version.description
    folder = Path(listing.report).parent
    assert all_files(folder) == {
        *EVIDENCE, "MLmodel", "manifest.json", "release.dsse.json", "examples.safetensors",
        f"{slug}/model.so",
    }  # fmt: skip
    for name in ("manifest.json", f"{slug}/model.so"):
        assert (folder / name).read_bytes() == (signed.folder / name).read_bytes()


def test_the_logged_model_names_its_version_and_nobody_at_work(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    list_signed(catalogue, signed_release(tmp_path / "release"))
    client = client_of(catalogue)
    experiment = client.get_experiment_by_name("handoff")
    (logged,) = client.search_logged_models([experiment.experiment_id])
    assert json.loads(logged.tags["mlflow.modelVersions"]) == [{"name": "toy", "version": "1"}]
    assert "handoff.registrar" not in logged.tags


def test_a_release_listed_twice_is_one_version(tmp_path: Path, catalogue: Catalogue) -> None:
    signed = signed_release(tmp_path / "release")
    assert list_signed(catalogue, signed) == list_signed(catalogue, signed)
    assert len(client_of(catalogue).search_model_versions("name = 'toy'")) == 1


def test_a_name_with_a_dot_can_be_listed(tmp_path: Path, catalogue: Catalogue) -> None:
    signed = signed_release(tmp_path / "release", model="ranker-1.5_b")
    assert list_signed(catalogue, signed).version == 1
    assert set(catalogue.list_versions("ranker-1.5_b")) == {1}


def _long(stage: str, after: bool) -> Any:
    return pytest.param(stage, after, marks=pytest.mark.long)


# One for each state that can be left: what stands between two of them changes nothing in MLflow.
STAGES = [
    ("create_experiment", False), _long("create_run", False), ("create_run", True),
    ("create_logged_model", True), _long("log_batch", True), _long("log_artifact", True),
    ("log_model_artifact", True), _long("set_terminated", True), ("finalize_logged_model", True),
    _long("create_registered_model", True), ("create_model_version", True),
]  # fmt: skip


@pytest.fixture(scope="module")
def registrars(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registrars]:
    started = Registrars(tmp_path_factory.mktemp("registrars") / "log")
    yield started
    started.close()


@pytest.mark.parametrize(("stage", "after"), STAGES)
def test_a_registrar_killed_anywhere_shows_nothing_half_and_the_next_one_ends_it(
    stage: str, after: bool, tmp_path: Path, catalogue: Catalogue, registrars: Registrars
) -> None:
    signed = signed_release(tmp_path / "release")
    assert registrars.kill_one(catalogue, signed, stage, after=after) == 9
    assert set(catalogue.list_versions("toy")) == (
        {1} if stage == "create_model_version" else set()
    )
    listing = list_signed(catalogue, signed)
    assert catalogue.list_versions("toy") == {1: listing}
    assert listing.version == 1
    client = client_of(catalogue)
    experiment = client.get_experiment_by_name("handoff")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_id, run.info.status) == (listing.run_id, "FINISHED")
    (logged,) = client.search_logged_models([experiment.experiment_id])
    assert (str(logged.status), logged.source_run_id) == ("READY", listing.run_id)
    # Nothing of what the killed one had uploaded is left, but for what is listed.
    kept = {Path(logged.artifact_location), Path(run.info.artifact_uri)}
    found = {path for path in Path(catalogue.artifact_root).rglob("*") if path.is_file()}
    assert all(kept & set(path.parents) for path in found)


def test_what_a_registrar_that_lives_is_uploading_is_left_to_it(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    signed = signed_release(tmp_path / "release")
    plain = MlflowClient.finalize_logged_model
    others: list[Any] = []

    def finalize(client: MlflowClient, *arguments: Any) -> object:
        if not others:
            others.append(None)
            others.append(list_signed(catalogue, signed))
        return plain(client, *arguments)

    monkeypatch.setattr(MlflowClient, "finalize_logged_model", finalize)
    first = list_signed(catalogue, signed)
    assert first == others[1]
    assert len(client_of(catalogue).search_model_versions("name = 'toy'")) == 1
    experiment = client_of(catalogue).get_experiment_by_name("handoff")
    assert len(client_of(catalogue).search_runs([experiment.experiment_id])) == 1


def test_four_registrars_at_once_on_one_database_make_four_versions_in_order(
    tmp_path: Path, catalogue: Catalogue, registrars: Registrars
) -> None:
    releases = [signed_release(tmp_path / f"r{n}", version=n) for n in range(1, 5)]
    # Its tables are not there yet: the four make them too.
    patient = Catalogue(f"sqlite:///{tmp_path / 'new.db'}", catalogue.artifact_root)
    assert registrars.list_at_once(patient, releases[::-1], range(1, 5)) == [0] * 4
    listed = patient.list_versions("toy")
    assert {number: one.version for number, one in listed.items()} == {n: n for n in range(1, 5)}
    assert [listed[one.claim.version].release for one in releases] == [
        one.release for one in releases
    ]


def test_the_same_release_by_four_registrars_at_once_is_one_version(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    signed = signed_release(tmp_path / "release")
    client_of(catalogue).search_experiments()
    with ThreadPoolExecutor(4) as pool:
        listings = set(pool.map(lambda _: list_signed(catalogue, signed), range(4)))
    assert len(listings) == 1
    (version,) = client_of(catalogue).search_model_versions("name = 'toy'")
    experiment = client_of(catalogue).get_experiment_by_name("handoff")
    (run,) = client_of(catalogue).search_runs([experiment.experiment_id])
    assert version.run_id == run.info.run_id


def test_a_version_waits_for_the_one_before_it_and_then_says_which_is_missing(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    first = signed_release(tmp_path / "first", version=1)
    third = signed_release(tmp_path / "third", version=3)
    list_signed(catalogue, first)
    assert catalogue.missing_before("toy", 3, [1, 2, 3]) == (2,)
    with pytest.raises(EarlierVersionsMissing, match=r"no version 2\. List these first") as caught:
        list_signed(catalogue, third, known=[1, 2, 3])
    assert caught.value.versions == (2,)
    assert set(catalogue.list_versions("toy")) == {1}
    list_signed(catalogue, signed_release(tmp_path / "second", version=2), known=[1, 2, 3])
    assert list_signed(catalogue, third, known=[1, 2, 3]).version == 3
    experiment = client_of(catalogue).get_experiment_by_name("handoff")
    # What was uploaded while it waited was found again.
    assert len(client_of(catalogue).search_runs([experiment.experiment_id])) == 3


def test_where_somebody_registered_by_hand_the_tag_is_right_and_the_page_says_so(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    list_signed(catalogue, signed_release(tmp_path / "first", version=1))
    client = client_of(catalogue)
    client.create_model_version("toy", source=str(tmp_path), tags={"handoff.version": "9"})
    listing = list_signed(catalogue, signed_release(tmp_path / "second", version=2))
    assert listing.version == 3
    assert catalogue.list_versions("toy")[2] == listing
    assert set(catalogue.list_versions("toy")) == {1, 2}
    text = client.get_model_version("toy", "3").description
    assert "This is version 2 of the release ledger" in text
    catalogue.set_aliases("toy", {"candidate": 2})
    assert client.get_model_version_by_alias("toy", "candidate").version == 3


def test_of_two_stores_in_one_mlflow_each_finds_its_own_versions(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    theirs = signed_release(tmp_path / "theirs", version=1)
    ours = signed_release(tmp_path / "ours", version=1, toolchain={"torch": "another"})
    list_signed(catalogue, theirs)
    assert catalogue.missing_before("toy", 2, [1], {1: ours.release}) == (1,)
    assert catalogue.set_aliases("toy", {"candidate": 1}, {1: ours.release}).unlisted == (
        "candidate",
    )
    listing = list_signed(catalogue, ours)
    assert catalogue.set_aliases("toy", {"candidate": 1}, {1: ours.release}).unlisted == ()
    found = client_of(catalogue).get_model_version_by_alias("toy", "candidate")
    assert int(found.version) == listing.version == 2
