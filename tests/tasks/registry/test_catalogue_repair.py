"""`handoff sync`'s step: what MLflow shows of a model and lost is uploaded again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from handoff.tasks.registry.messages import CatalogueJob, CatalogueResult
from tests.artifacts.mlflow.listing import all_files
from tests.mlflow_server import copy_mlflow_tables
from tests.tasks.registry.registering import Here, some_registry


@pytest.mark.long
def test_lost_files_come_back_where_that_is_asked_for(tmp_path: Path) -> None:
    registry = some_registry(tmp_path)
    root = tmp_path / "artifacts"
    copy_mlflow_tables(tmp_path / "mlflow.db")
    database = f"sqlite:///{tmp_path / 'mlflow.db'}"
    stores = replace(registry.stores, tracking_uri=database, artifact_root=str(root))
    for day in (21, 22, 23):
        registry.release(f"2026-11-{day}T00:00:00+00:00")
    registry.retire(1)
    shown = Here().run(CatalogueJob(stores, "toy", repairs=True))
    # An MLflow that knew nothing of the model has got its alias, too.
    assert shown == CatalogueResult(3, ("@candidate pointed to nothing, and points to 3",))
    before = all_files(root)

    shutil.rmtree(root)
    # A release that comes meanwhile doesn't look at all that others have listed.
    assert Here().run(CatalogueJob(stores, "toy")) == CatalogueResult(3)
    assert Here().run(CatalogueJob(stores, "toy", repairs=True)) == CatalogueResult(
        3, repaired=(2, 3)
    )
    assert all_files(root) == before
    assert Here().run(CatalogueJob(stores, "toy", repairs=True)) == CatalogueResult(3)
