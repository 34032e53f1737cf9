"""A refused release in MLflow: one run, marked, with its sentence, its report and its duration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.errors import BlessingRefused, BuildCrashed, DeliveryUnreadable, HandoffError
from handoff.artifacts.mlflow.registry import Catalogue
from handoff.artifacts.mlflow.standalone_runs import Refusal
from tests.artifacts.mlflow.listing import client_of
from tests.artifacts.samples import sample_manifest, sample_target

RUN = "8d2f3c7e-0000-4000-8000-000000000001"


def refused_by(kind: type[HandoffError]) -> Refusal:
    error = kind("toy is not released", expected="a|b", got="<script>", remedy="Mend *it*")
    began, ended = "2026-11-27T04:00:00+00:00", "2026-11-27T04:01:30+00:00"
    lineage = Lineage(repository="https://git/toy", commit="0123456789abcdef")
    return Refusal("toy", lineage, error.as_record(), began, ended, RUN, f"https://prefect/{RUN}")


def test_a_refusal_is_one_run_named_by_model_and_commit_with_all_that_was_found(
    catalogue: Catalogue,
) -> None:
    manifest = sample_manifest(replace(sample_target("cpu-avx2"), accepted=False))
    refusal, evidence = refused_by(BlessingRefused), {"report.html": b"<h1>toy</h1>"}
    address = catalogue.log_refusal(refusal, manifest, evidence)
    assert catalogue.log_refusal(refusal, manifest, evidence) == address
    client = client_of(catalogue)
    (run,) = client.search_runs([address.experiment], "tags.`handoff.outcome` = 'refused'")
    assert run.info.run_name == "toy refused 01234567"
    assert (run.info.status, run.info.end_time - run.info.start_time) == ("FAILED", 90_000)
    assert run.data.tags["handoff.reason"] == "toy is not released: expected a|b, got <script>"
    assert run.data.tags["handoff.refused_by"] == "BlessingRefused"
    assert run.data.tags["handoff.commit"] == "0123456789abcdef"
    assert run.data.metrics["cpu-avx2/max_abs"] == 3e-7
    assert run.data.params["targets"] == "cpu-avx2"
    assert [one.path for one in client.list_artifacts(address.run)] == ["report.html"]
    note = run.data.tags["mlflow.note.content"]
    assert note.startswith("Refused: nothing was released of toy 01234567.\n\n")
    assert "expected a\\|b, got \\<script\\>" in note
    assert "**What to do:** Mend \\*it\\*" in note
    assert f"/runs/{address.run}/artifacts/report.html" in note
    assert f"- flow run: [{RUN}](https://prefect/{RUN})" in note


@pytest.mark.parametrize(
    ("kind", "outcome"), [(DeliveryUnreadable, "refused"), (BuildCrashed, "crashed")]
)
def test_without_anything_measured_the_sentence_is_there_and_a_crash_is_no_refusal(
    kind: type[HandoffError], outcome: str, catalogue: Catalogue
) -> None:
    address = catalogue.log_refusal(refused_by(kind), None, {})
    run = client_of(catalogue).get_run(address.run)
    assert run.data.tags["handoff.outcome"] == outcome
    assert (run.data.metrics, run.data.params) == ({}, {})
    assert "report" not in run.data.tags["mlflow.note.content"]
