"""A night in MLflow: one run a night, with its table, its page and the trends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from handoff.artifacts.mlflow.own_runs import OwnRun
from handoff.artifacts.nightly.night import ALARMING, OUTCOMES, Night, NightRow

STAMP_TAG = "handoff.night"


def run_of_night(night: Night, note: str) -> OwnRun:
    """Return the run that shows the night; `note` is its description in Markdown."""
    return OwnRun(
        STAMP_TAG, night.stamp, f"night {night.date}", note,
        _milliseconds(night.started), _milliseconds(night.ended), _metrics(night),
        has_failed=bool(night.exit_status),
    )  # fmt: skip


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
