"""An embedded registry of MLflow's, with its tables made."""

from __future__ import annotations

from pathlib import Path

import pytest

from handoff.artifacts.mlflow.registry import Catalogue
from tests.mlflow_server import copy_mlflow_tables


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    """An embedded registry, which does not wait long for what isn't there."""
    copy_mlflow_tables(tmp_path / "mlflow.db")
    root = tmp_path / "mlflow"
    return Catalogue(f"sqlite:///{tmp_path / 'mlflow.db'}", str(root), order_wait_s=0.3)
