"""A night in MLflow: one run a night, with its table, its page and the trends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from artifacts.catalogue.logged_release import NOTE_TAG
from artifacts.catalogue.session import Session
from artifacts.night import ALARMING, OUTCOMES, Night, NightRow

STAMP_TAG = "handoff.night"
# MLflow takes no more at once.
_BATCH = 1000


def log_night(session: Session, experiment: str, night: Night, note: str, folder: Path) -> str:
    """Log the night as a run with the files below `folder`; return the run's id.

    `note` is its description in Markdown. A run of the same night that is there already is taken
    up, so that a night which is told again has one run.
    """
    from mlflow.entities import Metric

    client, call = session.client, session.call
    query = f"tags.`{STAMP_TAG}` = '{night.stamp}'"
    known = list(call(client.search_runs, [experiment], query, max_results=1))
    began = _milliseconds(night.started)
    run = known[0] if known else call(
        client.create_run, experiment, began, {STAMP_TAG: night.stamp}, f"night {night.date}"
    )  # fmt: skip
    identity: str = run.info.run_id
    call(client.set_tag, identity, NOTE_TAG, note)
    ended = _milliseconds(night.ended)
    metrics = [Metric(name, value, ended, 0) for name, value in _metrics(night).items()]
    for place in range(0, len(metrics), _BATCH):
        call(client.log_batch, identity, metrics[place : place + _BATCH])
    call(client.log_artifacts, identity, str(folder))
    status = "FAILED" if night.exit_status else "FINISHED"
    call(client.set_terminated, identity, status, _milliseconds(night.ended))
    return identity


def _milliseconds(iso: str) -> int:
    return int(datetime.fromisoformat(iso).timestamp() * 1000)


def _metrics(night: Night) -> Mapping[str, float]:
    """Return the night's counts, and the figures of what each model is served by afterwards."""
    counts = {f"models.{outcome}": float(night.counts.get(outcome, 0)) for outcome in OUTCOMES}
    figures = [item for row in night.rows for item in _figures(row).items()]
    total = {"models": float(len(night.rows)), "seconds": night.seconds}
    alarming = sum(night.counts.get(outcome, 0) for outcome in ALARMING)
    return {**total, **counts, "models.alarming": float(alarming), **dict(figures)}


def _figures(row: NightRow) -> Mapping[str, float]:
    found: dict[str, float | None] = {}
    for one in row.served_figures:
        name = f"{row.model}/{one.target}"
        found[f"{name}/speed over eager"] = one.speed.value if one.speed else None
        found[f"{name}/error to float64 over eager"] = one.rmse_ratio
        found[f"{name}/MB"] = one.size_bytes / 1e6
        found[f"{name}/compile s"] = one.compiled_s
    return {name: value for name, value in found.items() if value is not None}
