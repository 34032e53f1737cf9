"""An embedded registry of MLflow's, with its tables made."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from handoff.artifacts.mlflow.registry import Catalogue
from tests.artifacts.mlflow.listing import (
    client_of,
)


@pytest.fixture(scope="package")
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
