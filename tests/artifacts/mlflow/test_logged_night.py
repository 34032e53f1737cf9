"""A night in MLflow: one run, whose figures MLflow takes under their names."""

from __future__ import annotations

from pathlib import Path

from handoff.artifacts.mlflow.registry import Catalogue
from tests.artifacts.nights import month
from tests.mlflow_server import copy_mlflow_tables


def test_a_night_is_one_run_with_the_figures_of_what_is_served(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    folder, kept = tmp_path / "night", tmp_path / "artifacts"
    folder.mkdir()
    kept.mkdir()
    (folder / "night.md").write_text("a night")
    copy_mlflow_tables(tmp_path / "mlflow.db")
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    (night,) = month()[-1:]
    catalogue = Catalogue(address, str(kept))
    first = catalogue.log_night(night, "note", folder)
    assert catalogue.log_night(night, "note", folder) == first
    run = MlflowClient(address).get_run(first.run)
    served = night.rows[0].served_figures[0]
    name = f"{night.rows[0].model}/{served.target}/error to float64 over eager"
    assert run.data.metrics[name] == served.rmse_ratio
    assert run.info.status == ("FAILED" if night.exit_status else "FINISHED")
