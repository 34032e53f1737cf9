"""What a version in MLflow shows: its aliases, where it comes from, and what is other in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.mlflow.registry import AliasUpdate, Catalogue
from handoff.artifacts.release.evidence import EarlierMeasurement, ServedVersion
from tests.artifacts.mlflow.listing import (
    client_of,
    list_signed,
    signed_release,
)
from tests.artifacts.nights import compared, figures, night


def test_a_night_is_one_run_with_every_figure_however_often_it_is_told(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    (tmp_path / "night").mkdir()
    (tmp_path / "night" / "night.md").write_text("# a night")
    models = [compared("replaced", figures(1, 1.4), figures(2, 1.5), "better", f"model-{n:03}")
              for n in range(300)]  # fmt: skip
    addresses = [
        catalogue.log_night(night(0, *models), "a night", tmp_path / "night") for _ in range(2)
    ]
    assert addresses[0] == addresses[1]
    found = client_of(catalogue).get_run(addresses[0].run).data.metrics
    # Four of each model, which are more than MLflow takes at once.
    assert len([name for name in found if name.startswith("model-")]) == 1200
    assert found["model-007/cpu-avx512/error to float64 over eager"] == 1.04
    assert found["models.replaced"] == 300.0


def test_aliases_follow_the_ledger_and_those_of_unlisted_versions_stay(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    assert catalogue.set_aliases("toy", {"candidate": 1}).unlisted == ("candidate",)
    for version in (1, 2):
        list_signed(catalogue, signed_release(tmp_path / f"r{version}", version=version))
    client = client_of(catalogue)
    client.set_registered_model_alias("toy", "mine", "1")
    assert catalogue.set_aliases("toy", {"candidate": 2, "production": 1}).unlisted == ()
    assert catalogue.set_aliases("toy", {"candidate": 3, "production": 2}).unlisted == (
        "candidate",
    )
    assert client.get_registered_model("toy").aliases == {
        "candidate": 2, "production": 2, "mine": 1,
    }  # fmt: skip


def test_a_version_that_was_retired_says_so_once_and_no_other_does(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    releases = {v: signed_release(tmp_path / f"r{v}", version=v) for v in (1, 2)}
    for release in releases.values():
        list_signed(catalogue, release)
    digests = {version: one.release for version, one in catalogue.list_versions("toy").items()}
    asked: list[int] = []

    def release_of(version: int) -> Digest:
        asked.append(version)
        return digests[version]

    for _ in range(2):
        catalogue.retire("toy", (1,), release_of)
    assert asked == [1], "what is said already is looked up no more"
    client = client_of(catalogue)
    gone, kept = (client.get_model_version("toy", str(version)) for version in (1, 2))
    assert gone.tags["verdict"] == "retired"
    assert gone.description.count("**Retired**: `handoff pull toy@1`") == 1
    assert kept.tags["verdict"] != "retired"
    assert "Retired" not in kept.description


def test_an_alias_that_somebody_moved_in_mlflow_is_put_back_and_told(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    for version in (1, 2):
        list_signed(catalogue, signed_release(tmp_path / f"r{version}", version=version))
    ledger, client = {"production": 1}, client_of(catalogue)
    assert catalogue.set_aliases("toy", ledger).put_back == (
        "@production pointed to nothing, and points to 1",
    )
    assert catalogue.set_aliases("toy", ledger) == AliasUpdate()
    client.set_registered_model_alias("toy", "production", "2")
    client.set_registered_model_alias("toy", "champion", "2")
    assert catalogue.set_aliases("toy", ledger) == AliasUpdate(
        put_back=("@production pointed to 2, and points to 1",), foreign=("champion",)
    )
    assert client.get_model_version_by_alias("toy", "production").version == 1


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


def test_a_version_says_what_was_not_measured_anew(tmp_path: Path, catalogue: Catalogue) -> None:
    signed = signed_release(tmp_path / "plain")
    earlier = EarlierMeasurement(digest_bytes(b"library"), "2026-11-23 14:00+00:00")
    (target,) = signed.manifest.targets
    taken = signed_release(tmp_path / "release", targets=(replace(target, taken_over=earlier),))
    list_signed(catalogue, taken)
    description = client_of(catalogue).get_model_version("toy", "1").description
    assert f"`{target.slug}`: {earlier.text}." in description


def test_a_version_says_what_is_other_than_in_the_one_in_production(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    served = ServedVersion(4, ("the recipe", "torch 2.14.0 is now 2.15.0"), ())
    list_signed(catalogue, signed_release(tmp_path / "release", served=served))
    description = client_of(catalogue).get_model_version("toy", "1").description
    assert (
        "Changed since version 4, which was in production: the recipe, torch 2.14.0 is now 2.15.0."
        in description
    )
    assert "`handoff diff toy@4 toy@1 --html difference.html`" in description
