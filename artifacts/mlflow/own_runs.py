"""Runs that no version is made of: a night, a table, a refusal; found by a tag, and told anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from handoff.artifacts.conformance.table import Conformance
from handoff.artifacts.mlflow.logged_release import NOTE_TAG
from handoff.artifacts.mlflow.session import Session
from handoff.artifacts.nightly.night import ALARMING, OUTCOMES, Night, NightRow

# MLflow takes no more at once.
_BATCH = 1000

TOOLCHAIN_TAG = "handoff.toolchain"

STAMP_TAG = "handoff.night"


@dataclass(frozen=True)
class OwnRun:
    """What such a run shows: `began` and `ended` are milliseconds since 1970.

    There is one run for each value of `tag`. `note` is its description in Markdown.
    """

    tag: str
    value: str
    name: str
    note: str
    began: int
    ended: int
    metrics: Mapping[str, float]
    has_failed: bool = False
    tags: Mapping[str, str] | None = None
    parameters: Mapping[str, str] | None = None


def log_own_run(session: Session, experiment: str, wanted: OwnRun, folder: Path) -> str:
    """Log the run with the files below `folder`; return its id.

    A run of the same value that is there already is taken up, so that what is told again has one.
    """
    from mlflow.entities import Metric, Param

    client, call = session.client, session.call
    query = f"tags.`{wanted.tag}` = '{wanted.value}'"
    known = list(call(client.search_runs, [experiment], query, max_results=1))
    run = known[0] if known else call(
        client.create_run, experiment, wanted.began, {wanted.tag: wanted.value}, wanted.name
    )  # fmt: skip
    identity: str = run.info.run_id
    for tag, text in {NOTE_TAG: wanted.note, **(wanted.tags or {})}.items():
        call(client.set_tag, identity, tag, text)
    metrics = [Metric(name, value, wanted.ended, 0) for name, value in wanted.metrics.items()]
    for place in range(0, len(metrics), _BATCH):
        call(client.log_batch, identity, metrics[place : place + _BATCH])
    parameters = [Param(*pair) for pair in (wanted.parameters or {}).items()]
    call(client.log_batch, identity, params=parameters)
    call(client.log_artifacts, identity, str(folder))
    status = "FAILED" if wanted.has_failed else "FINISHED"
    call(client.set_terminated, identity, status, wanted.ended)
    return identity


def run_of_table(table: Conformance, note: str) -> OwnRun:
    """Return the run that shows the table; `note` is its description in Markdown."""
    ended = int(datetime.fromisoformat(table.made).timestamp() * 1000)
    counts = {standing.replace(" ", "_"): float(n) for standing, n in table.counts.items()}
    metrics = {
        **counts, "unasked": float(table.unasked), "seconds": table.seconds,
        "operators": float(len({row.operator for row in table.rows})),
    }  # fmt: skip
    names = table.toolchain
    return OwnRun(
        TOOLCHAIN_TAG, table.digest.hex, f"{table.target}, torch {names['torch']}", note,
        ended - round(table.seconds * 1000), ended, metrics,
        tags={f"handoff.{name}": value for name, value in names.items()},
    )  # fmt: skip


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
        if one.metric is not None:
            found[f"{name}/{one.metric.shown_name}"] = one.metric.package
        found[f"{name}/MB"] = one.size_bytes / 1e6
        found[f"{name}/compile s"] = one.compiled_s
    return {name: value for name, value in found.items() if value is not None}
