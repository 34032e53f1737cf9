"""A night is shown in MLflow with all that was decided, and the way to the run that decided it."""

from __future__ import annotations

from pathlib import Path

import pytest

from handoff.artifacts.host import Stores
from handoff.artifacts.night import Night, read_nights
from handoff.artifacts.stores.store import open_store
from handoff.tasks.nightly.messages import ShowNightJob
from handoff.tasks.nightly.publishing import show_night
from tests.artifacts.nights import compared, figures, night
from tests.mlflow_server import copy_mlflow_tables

RUN = "http://127.0.0.1:4200/runs/flow-run/0197"


def note_of(shown_night: Night, folder: Path) -> str:
    """Return the description of the night's run in MLflow."""
    from mlflow import MlflowClient

    stores = Stores(
        objects=str(folder / "store"), tracking_uri=f"sqlite:///{folder / 'mlflow.db'}",
        artifact_root=str(folder / "artifacts"), trusted=(),
    )  # fmt: skip
    copy_mlflow_tables(folder / "mlflow.db")
    shown = show_night(ShowNightJob(stores, shown_night, folder / "drawn", RUN))
    assert read_nights(open_store(stores.objects), 1) == (shown_night,)
    client = MlflowClient(stores.tracking_uri)
    experiment = client.get_experiment_by_name("handoff nights")
    assert experiment is not None
    (logged,) = client.search_runs([experiment.experiment_id])
    assert f"#/experiments/{experiment.experiment_id}/runs/{logged.info.run_id}" in shown.place
    note: str = logged.data.tags["mlflow.note.content"]
    # Before anything that MLflow folds: what became of whom, and where all of it stands.
    head, named, links = note.split("\n\n")[:3]
    assert head.startswith("Night of ")
    assert named.startswith("kept: model-0, model-1")
    assert links.startswith("[Each model's figures and why](#/experiments/")
    assert f"/runs/{logged.info.run_id}/artifacts/night.html?" in links
    assert links.endswith(f"flow run [0197]({RUN})")
    assert "night.html" in {one.path for one in client.list_artifacts(logged.info.run_id)}
    return note


@pytest.mark.parametrize(("models", "is_whole"), [(2, True), (32, False)])
def test_its_run_says_what_became_of_each_model_or_where_that_stands(
    models: int, *, is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_whole:
        # As long as its table is; pictures are the other night's and `test_trends`'.
        monkeypatch.setattr("handoff.tasks.nightly.publishing.trends", lambda *_: ())
    rows = [
        compared("kept", figures(1, 1.4), figures(2, 1.5), "worse", f"model-{n}")
        for n in range(models)
    ]
    note = note_of(night(0, *rows), tmp_path)
    assert ("| model-1 &emsp; | kept &emsp; |" in note) == is_whole
    assert not note.startswith("#")
    assert f"{models} models" in note
