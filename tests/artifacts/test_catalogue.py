"""MLflow mirrors what was released: whole or not at all, once, in order, whoever is killed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.delivery import require_alias_name, require_model_name
from artifacts.errors import RegistryFailed
from artifacts.evidence import Served
from artifacts.registry import Catalogue, EarlierMissing
from tests.artifacts.listing import (
    EVIDENCE,
    all_files,
    client_of,
    list_signed,
    signed_release,
    start_listing,
)
from tests.artifacts.nights import compared, figures, night


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of MLflow's with its tables, which take seconds to make."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    client_of(Catalogue(f"sqlite:///{path}", "")).search_experiments()
    return path


@pytest.fixture
def catalogue(tmp_path: Path, empty_database: Path) -> Catalogue:
    """An embedded registry, which does not wait long for what isn't there."""
    shutil.copyfile(empty_database, tmp_path / "mlflow.db")
    root = tmp_path / "mlflow"
    return Catalogue(f"sqlite:///{tmp_path / 'mlflow.db'}", str(root), order_wait_s=0.3)


def test_a_listed_release_has_everything_that_a_person_looks_for(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    signed = signed_release(tmp_path / "release", version=1)
    listing = list_signed(catalogue, signed)
    assert catalogue.listed("toy") == {1: listing}
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
    assert version.tags["handoff.blessing.numeric"] == "accepted"
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
    assert set(catalogue.listed("ranker-1.5_b")) == {1}


STAGES = [
    ("create_experiment", False), ("create_run", False), ("create_run", True),
    ("create_logged_model", True), ("log_batch", True), ("log_artifact", True),
    ("log_model_artifact", True), ("set_terminated", True), ("finalize_logged_model", False),
    ("finalize_logged_model", True), ("create_registered_model", True),
    ("create_model_version", False), ("create_model_version", True),
    ("set_logged_model_tags", False),
]  # fmt: skip


@pytest.mark.parametrize(("stage", "after"), STAGES)
def test_a_registrar_killed_anywhere_shows_nothing_half_and_the_next_one_ends_it(
    stage: str, after: bool, tmp_path: Path, catalogue: Catalogue
) -> None:
    signed = signed_release(tmp_path / "release")
    # It stays unreaped, as the child of a program that is still busy.
    killed = start_listing(catalogue, signed, stage=stage, after=after)
    assert killed.stdout is not None
    killed.stdout.read()
    is_made = stage in ("set_logged_model_tags",) or (stage, after) == (
        "create_model_version", True,
    )  # fmt: skip
    assert set(catalogue.listed("toy")) == ({1} if is_made else set())
    listing = list_signed(catalogue, signed)
    assert killed.wait() == -9
    assert catalogue.listed("toy") == {1: listing}
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


def test_eight_registrars_at_once_on_one_database_make_eight_versions_in_order(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    releases = [signed_release(tmp_path / f"r{n}", version=n) for n in range(1, 9)]
    # Its tables are not there yet: the eight make them too.
    patient = Catalogue(f"sqlite:///{tmp_path / 'new.db'}", catalogue.artifact_root)
    started = [start_listing(patient, one, known=range(1, 9)) for one in reversed(releases)]
    for process in started:
        _, told = process.communicate(timeout=300)
        assert process.returncode == 0, told
    listed = patient.listed("toy")
    assert {number: one.version for number, one in listed.items()} == {n: n for n in range(1, 9)}
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
    with pytest.raises(EarlierMissing, match=r"no version 2\. List these first") as caught:
        list_signed(catalogue, third, known=[1, 2, 3])
    assert caught.value.versions == (2,)
    assert set(catalogue.listed("toy")) == {1}
    list_signed(catalogue, signed_release(tmp_path / "second", version=2), known=[1, 2, 3])
    assert list_signed(catalogue, third, known=[1, 2, 3]).version == 3
    experiment = client_of(catalogue).get_experiment_by_name("handoff")
    # What was uploaded while it waited was found again.
    assert len(client_of(catalogue).search_runs([experiment.experiment_id])) == 3


def test_a_night_is_one_run_with_every_figure_however_often_it_is_told(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    (tmp_path / "night").mkdir()
    (tmp_path / "night" / "night.md").write_text("# a night")
    models = [compared("replaced", figures(1, 1.4), figures(2, 1.5), "better", f"model-{n:03}")
              for n in range(300)]  # fmt: skip
    told = [catalogue.log_night(night(0, *models), "a night", tmp_path / "night") for _ in range(2)]
    assert told[0] == told[1]
    found = client_of(catalogue).get_run(told[0].run).data.metrics
    # Four of each model, which are more than MLflow takes at once.
    assert len([name for name in found if name.startswith("model-")]) == 1200
    assert found["model-007/cpu-avx512/error to float64 over eager"] == 1.04
    assert found["models.replaced"] == 300.0


def test_where_somebody_registered_by_hand_the_tag_is_right_and_the_page_says_so(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    list_signed(catalogue, signed_release(tmp_path / "first", version=1))
    client = client_of(catalogue)
    client.create_model_version("toy", source=str(tmp_path), tags={"handoff.version": "9"})
    listing = list_signed(catalogue, signed_release(tmp_path / "second", version=2))
    assert listing.version == 3
    assert catalogue.listed("toy")[2] == listing
    assert set(catalogue.listed("toy")) == {1, 2}
    text = client.get_model_version("toy", "3").description
    assert "This is version 2 of the release ledger" in text
    catalogue.point("toy", {"candidate": 2})
    assert client.get_model_version_by_alias("toy", "candidate").version == 3


def test_of_two_stores_in_one_mlflow_each_finds_its_own_versions(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    theirs = signed_release(tmp_path / "theirs", version=1)
    ours = signed_release(tmp_path / "ours", version=1, toolchain={"torch": "another"})
    list_signed(catalogue, theirs)
    assert catalogue.missing_before("toy", 2, [1], {1: ours.release}) == (1,)
    assert catalogue.point("toy", {"candidate": 1}, {1: ours.release}) == ("candidate",)
    listing = list_signed(catalogue, ours)
    assert catalogue.point("toy", {"candidate": 1}, {1: ours.release}) == ()
    found = client_of(catalogue).get_model_version_by_alias("toy", "candidate")
    assert int(found.version) == listing.version == 2


def test_aliases_follow_the_ledger_and_those_of_unlisted_versions_stay(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    assert catalogue.point("toy", {"candidate": 1}) == ("candidate",)
    for version in (1, 2):
        list_signed(catalogue, signed_release(tmp_path / f"r{version}", version=version))
    client = client_of(catalogue)
    client.set_registered_model_alias("toy", "mine", "1")
    assert catalogue.point("toy", {"candidate": 2, "production": 1}) == ()
    assert catalogue.point("toy", {"candidate": 3, "production": 2}) == ("candidate",)
    assert client.get_registered_model("toy").aliases == {
        "candidate": 2, "production": 2, "mine": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "form", ["{}", "runs:/{}", "https://mlflow.example.org/#/experiments/7/runs/{}"]
)
def test_a_training_run_of_the_same_mlflow_is_linked(
    form: str, tmp_path: Path, catalogue: Catalogue
) -> None:
    list_signed(catalogue, signed_release(tmp_path / "first", version=1))
    client = client_of(catalogue)
    training = client.create_run(client.create_experiment("training", str(tmp_path / "training")))
    model = client.create_logged_model(
        training.info.experiment_id, source_run_id=training.info.run_id
    )
    from mlflow.entities import LoggedModelOutput

    client.log_outputs(training.info.run_id, [LoggedModelOutput(model.model_id, 0)])
    signed = signed_release(tmp_path / "plain", version=2)
    lineage = replace(signed.manifest.lineage, training_run=form.format(training.info.run_id))
    signed = signed_release(tmp_path / "second", version=2, lineage=lineage)
    listing = list_signed(catalogue, signed)
    version = client.get_model_version("toy", "2")
    assert version.tags["handoff.training_run_id"] == training.info.run_id
    page = f"#/experiments/{training.info.experiment_id}/runs/{training.info.run_id}"
    assert f"]({page}" in version.description
    inputs = client.get_run(listing.run_id).inputs.model_inputs
    assert [one.model_id for one in inputs] == [model.model_id]


@pytest.mark.parametrize("named", ["nightly 7", "runs:/" + "0" * 32, "`x` | [a](b)\n# h"])
def test_a_training_run_that_is_not_known_is_shown_as_text(
    named: str, tmp_path: Path, catalogue: Catalogue
) -> None:
    lineage = replace(signed_release(tmp_path / "plain").manifest.lineage, training_run=named)
    list_signed(catalogue, signed_release(tmp_path / "release", lineage=lineage))
    version = client_of(catalogue).get_model_version("toy", "1")
    assert "handoff.training_run_id" not in version.tags
    (line,) = [one for one in version.description.splitlines() if "training run" in one]
    assert line.startswith("- training run: `")
    assert line.endswith("`")
    assert line.count("`") == 2


def test_a_locked_database_is_waited_for(tmp_path: Path, catalogue: Catalogue) -> None:
    list_signed(catalogue, signed_release(tmp_path / "first", version=1))
    second = signed_release(tmp_path / "second", version=2)
    other = sqlite3.connect(catalogue.tracking_uri.removeprefix("sqlite:///"))
    other.execute("BEGIN EXCLUSIVE")
    with ThreadPoolExecutor(1) as pool:
        listing = pool.submit(list_signed, catalogue, second)
        with pytest.raises(TimeoutError):
            listing.result(timeout=2)
        other.rollback()
        assert listing.result(timeout=60).version == 2


def test_a_database_that_stays_locked_is_told(tmp_path: Path, catalogue: Catalogue) -> None:
    signed = signed_release(tmp_path / "first", version=1)
    list_signed(catalogue, signed)
    hasty = Catalogue(catalogue.tracking_uri, catalogue.artifact_root, patience_s=0)
    other = sqlite3.connect(catalogue.tracking_uri.removeprefix("sqlite:///"))
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(RegistryFailed, match=r"list the versions.*database is locked"):
            hasty.listed("toy")
    finally:
        other.rollback()


def test_reading_a_registry_that_is_not_there_creates_nothing(tmp_path: Path) -> None:
    catalogue = Catalogue(f"sqlite:///{tmp_path / 'mlflow.db'}", str(tmp_path / "mlflow"))
    assert catalogue.listed("toy") == {}
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_down_is_told_without_its_password() -> None:
    hasty = Catalogue("http://user:secret@127.0.0.1:9", "", patience_s=0)
    with pytest.raises(RegistryFailed, match=r"MLflow at http://127.0.0.1:9") as caught:
        hasty.listed("toy")
    assert "secret" not in str(caught.value)


_MISLEADING = st.sampled_from(
    [" ", "\t", "\n", "\r", "\u00a0", "\u200b", "\u200d", "\ufeff", "\u2003", "\u202e",
     "\uff41", "\u0430", "\u0660", "\uff10", "/", ":", "'", "%", "\x00", "\u212a"]
)  # fmt: skip


@given(before=st.text("abz09", max_size=3), odd=_MISLEADING, after=st.text("abz09", max_size=3))
def test_no_misleading_character_gets_into_a_name(before: str, odd: str, after: str) -> None:
    for check in (require_model_name, require_alias_name):
        with pytest.raises(ValueError, match="expected a"):
            check(f"a{before}{odd}{after}")


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,62}", fullmatch=True))
def test_every_alias_that_is_let_through_is_one_of_mlflow(alias: str) -> None:
    from mlflow.utils.validation import (
        _validate_model_alias_name,
        _validate_model_alias_name_reserved,
    )

    try:
        require_alias_name(alias)
    except ValueError:
        assert alias.lower() == "latest" or alias[1:].isdigit()
        return
    _validate_model_alias_name(alias)  # type: ignore[no-untyped-call]
    _validate_model_alias_name_reserved(alias)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("alias", ["latest", "Latest", "v1", "V12", "", "-a", "1", "a" * 64, "a b"])
def test_an_alias_that_mlflow_keeps_for_itself_is_refused(alias: str, catalogue: Catalogue) -> None:
    with pytest.raises(ValueError, match="expected an alias"):
        catalogue.point("toy", {alias: 1})


def test_a_version_says_what_is_other_than_in_the_one_in_production(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    served = Served(4, ("the recipe", "torch 2.14.0 is now 2.15.0"), ())
    list_signed(catalogue, signed_release(tmp_path / "release", served=served))
    description = client_of(catalogue).get_model_version("toy", "1").description
    assert (
        "Other than in version 4, which was in production: the recipe, torch 2.14.0 is now 2.15.0."
        in description
    )
