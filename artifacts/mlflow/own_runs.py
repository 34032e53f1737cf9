"""Runs that are no release: a night, a conformance table; found again by a tag, and told anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.mlflow.logged_release import NOTE_TAG
from handoff.artifacts.mlflow.session import Session

# MLflow takes no more at once.
_BATCH = 1000


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


def log_own_run(session: Session, experiment: str, wanted: OwnRun, folder: Path) -> str:
    """Log the run with the files below `folder`; return its id.

    A run of the same value that is there already is taken up, so that what is told again has one.
    """
    from mlflow.entities import Metric

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
    call(client.log_artifacts, identity, str(folder))
    status = "FAILED" if wanted.has_failed else "FINISHED"
    call(client.set_terminated, identity, status, wanted.ended)
    return identity
