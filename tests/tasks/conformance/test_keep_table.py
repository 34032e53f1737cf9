"""A conformance table is kept signed and shown in MLflow, and kept all the same without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.conformance.storage import conformance_statement, read_table
from handoff.artifacts.conformance.table import ConformanceRow
from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.host import Stores
from handoff.artifacts.release.signing import make_key, open_signer, read_trust, sign_statement
from handoff.artifacts.stores.folder import FolderStore
from handoff.tasks.conformance import tables
from handoff.tasks.conformance.messages import KeepTableJob
from handoff.tasks.conformance.tables import render_table
from tests.artifacts.conformance.conformance_samples import right_add, table, wrong_amax
from tests.mlflow_server import copy_mlflow_tables


def job(folder: Path, *, tracking: str = "") -> KeepTableJob:
    if not (folder / "signing.pem").exists():
        make_key(folder / "signing.pem", folder / "own.pub")
        (folder / "artifacts").mkdir()
    envelope = sign_statement(
        conformance_statement(table()), open_signer(str(folder / "signing.pem"), folder / "own.pub")
    )
    stores = Stores(
        str(folder / "store"), tracking or f"sqlite:///{folder / 'mlflow.db'}",
        str(folder / "artifacts"), trusted=(str(folder / "own.pub"),),
    )  # fmt: skip
    return KeepTableJob(table(), envelope.decode(), stores, folder / "shown")


def test_a_kept_table_is_one_run_in_mlflow_however_often_it_is_kept(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    copy_mlflow_tables(tmp_path / "mlflow.db")
    kept = tables.keep_signed_table(job(tmp_path))
    assert tables.keep_signed_table(job(tmp_path)) == kept
    assert kept.not_shown == ""
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("handoff conformance")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id in kept.page
    assert run.data.metrics["wrong"] == 1.0
    assert run.data.metrics["right"] == 1.0
    assert run.data.tags["handoff.target"] == "cpu-avx512"
    assert "amax" in run.data.tags["mlflow.note.content"]
    names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert names == {"conformance.md", "conformance.html", "conformance.json"}


def test_without_mlflow_it_is_kept_and_not_shown(tmp_path: Path) -> None:
    # No folder, so that no database can lie there.
    kept = tables.keep_signed_table(
        job(tmp_path, tracking=f"sqlite:///{tmp_path}/own.pub/mlflow.db")
    )
    assert kept.page == ""
    assert kept.not_shown
    trust = read_trust((str(tmp_path / "own.pub"),))
    assert read_table(FolderStore(tmp_path / "store"), trust, table().digest) == table()


def test_one_that_another_key_has_signed_is_not_shown(tmp_path: Path) -> None:
    wanted = job(tmp_path)
    (tmp_path / "own.pub").unlink()
    make_key(tmp_path / "other.pem", tmp_path / "own.pub")
    with pytest.raises(PackageRefused):
        tables.keep_signed_table(wanted)
    assert not (tmp_path / "mlflow.db").exists()


def test_the_page_has_every_wrong_pair_and_why_others_were_not_asked() -> None:
    left = ConformanceRow("rand", "float32", "not compiled", "its result is drawn at *random*")
    one = replace(table(right_add(), wrong_amax(), left), unasked=7)
    text = render_table(one)
    for part in ("amax", "int8", "issues/191499", "one-sided, negative", "7 more not asked yet"):
        assert part in text
    assert r"1: its result is drawn at \*random\*" in text
    assert "| add |" not in text
    assert "No operator is known to be wrong" in render_table(table(right_add()))
