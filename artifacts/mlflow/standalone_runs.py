"""Runs that no version is made of: a night, a table, a refusal; found by a tag."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from handoff.artifacts.conformance.table import Conformance
from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.errors import BuildCrashed, error_from_record
from handoff.artifacts.mlflow.description import (
    RunAddress,
    add_column_gaps,
    format_code,
    link_run,
    targets_table,
)
from handoff.artifacts.mlflow.logged_release import NOTE_TAG
from handoff.artifacts.mlflow.session import Session
from handoff.artifacts.mlflow.tags import (
    HIDDEN,
    OUTCOME_TAG,
    TAG,
    run_metrics,
    run_parameters,
    run_title,
    source_tags,
)
from handoff.artifacts.night import ALARMING, OUTCOMES, Night, NightRow
from handoff.artifacts.printable import markdown_text, one_line
from handoff.artifacts.release.manifest import Manifest

# MLflow takes no more at once.
_BATCH = 1000

TOOLCHAIN_TAG = "handoff.toolchain"

STAMP_TAG = "handoff.night"

Note = str | Callable[[RunAddress], str]


@dataclass(frozen=True)
class StandaloneRun:
    """What such a run shows: `began` and `ended` are milliseconds since 1970.

    There is one run for each value of `tag`. `note` is its description in Markdown, or what makes
    it of where the run is.
    """

    tag: str
    value: str
    name: str
    note: Note
    began: int
    ended: int
    metrics: Mapping[str, float]
    has_failed: bool = False
    tags: Mapping[str, str] | None = None
    parameters: Mapping[str, str] | None = None


def log_standalone_run(session: Session, experiment: str, spec: StandaloneRun, folder: Path) -> str:
    """Log the run with the files below `folder`; return its id.

    A run of the same value that is there already is taken up, so that what is logged again has one.
    """
    from mlflow.entities import Metric, Param

    client, call = session.client, session.call
    query = f"tags.`{spec.tag}` = '{spec.value}'"
    existing = list(call(client.search_runs, [experiment], query, max_results=1))
    run = existing[0] if existing else call(
        client.create_run, experiment, spec.began, {spec.tag: spec.value}, spec.name
    )  # fmt: skip
    run_id: str = run.info.run_id
    note = spec.note
    description = note if isinstance(note, str) else note(RunAddress(experiment, run_id))
    for tag, text in {NOTE_TAG: description, **(spec.tags or {})}.items():
        call(client.set_tag, run_id, tag, text)
    metrics = [Metric(name, value, spec.ended, 0) for name, value in spec.metrics.items()]
    for start in range(0, len(metrics), _BATCH):
        call(client.log_batch, run_id, metrics[start : start + _BATCH])
    parameters = [Param(*pair) for pair in (spec.parameters or {}).items()]
    call(client.log_batch, run_id, params=parameters)
    call(client.log_artifacts, run_id, str(folder))
    status = "FAILED" if spec.has_failed else "FINISHED"
    call(client.set_terminated, run_id, status, spec.ended)
    return run_id


def run_of_table(table: Conformance, note: Note) -> StandaloneRun:
    """Return the run that shows the table; `note` is its description in Markdown."""
    ended = int(datetime.fromisoformat(table.made).timestamp() * 1000)
    counts = {standing.replace(" ", "_"): float(n) for standing, n in table.counts.items()}
    metrics = {
        **counts, "unasked": float(table.unasked), "seconds": table.seconds,
        "operators": float(len({row.operator for row in table.rows})),
    }  # fmt: skip
    names = table.toolchain
    return StandaloneRun(
        TOOLCHAIN_TAG, table.digest.hex, f"{table.target}, torch {names['torch']}", note,
        ended - round(table.seconds * 1000), ended, metrics,
        tags={f"handoff.{name}": value for name, value in names.items()},
    )  # fmt: skip


def run_of_night(night: Night, note: Note) -> StandaloneRun:
    """Return the run that shows the night; `note` is its description in Markdown."""
    return StandaloneRun(
        STAMP_TAG, night.stamp, f"night {night.date}", note,
        _to_milliseconds(night.started), _to_milliseconds(night.ended), _night_metrics(night),
        has_failed=bool(night.exit_status),
    )  # fmt: skip


def _to_milliseconds(iso: str) -> int:
    return int(datetime.fromisoformat(iso).timestamp() * 1000)


def _night_metrics(night: Night) -> Mapping[str, float]:
    """Return the night's counts, and the figures of what each model is served by afterwards."""
    counts = {f"models.{outcome}": float(night.counts.get(outcome, 0)) for outcome in OUTCOMES}
    figures = [item for row in night.rows for item in _row_metrics(row).items()]
    total = {"models": float(len(night.rows)), "seconds": night.seconds}
    alarming = sum(night.counts.get(outcome, 0) for outcome in ALARMING)
    return {**total, **counts, "models.alarming": float(alarming), **dict(figures)}


def _row_metrics(row: NightRow) -> Mapping[str, float]:
    metrics: dict[str, float | None] = {}
    for figures in row.served_figures:
        name = f"{row.model}/{figures.target}"
        metrics[f"{name}/speed over eager"] = figures.speed.value if figures.speed else None
        metrics[f"{name}/error to float64 over eager"] = figures.rmse_ratio
        if figures.metric is not None:
            metrics[f"{name}/{figures.metric.shown_name}"] = figures.metric.package
        metrics[f"{name}/MB"] = figures.size_bytes / 1e6
        metrics[f"{name}/compile s"] = figures.compiled_s
    return {name: value for name, value in metrics.items() if value is not None}


REFUSAL_TAG = f"{HIDDEN}refused_run"
# MLflow takes 8000 characters (3.17, `MAX_TAG_VAL_LENGTH`), and escapes may double a text.
_SENTENCE_LIMIT = 2500


@dataclass(frozen=True)
class Refusal:
    """A release that was refused: of what, by which error's record, and when (ISO 8601).

    `model` is the delivery's own name where that isn't known. `run` is the id of the flow run, and
    `page` its address where a server keeps it.
    """

    model: str
    lineage: Lineage
    error: dict[str, str]
    began: str
    ended: str
    run: str
    page: str = ""

    @property
    def outcome(self) -> str:
        """`crashed` where nothing was shown to be wrong, else `refused`."""
        is_crash = isinstance(error_from_record(self.error), BuildCrashed)
        return "crashed" if is_crash else "refused"

    @property
    def title(self) -> str:
        """What was refused, by model and commit."""
        return run_title(self.model, self.lineage)

    @property
    def reason(self) -> str:
        """The sentence without the remedy: what was expected, and what was found."""
        place = f"{self.error['where']}: " if self.error["where"] else ""
        sentence = (
            f"{self.error['what']}: expected {self.error['expected']}, got {self.error['got']}"
        )
        return one_line(place + sentence)


def run_of_refusal(refusal: Refusal, manifest: Manifest | None, report: str) -> StandaloneRun:
    """Return the run that shows a refusal.

    `manifest` is what was measured until then, and `report` its report's file name, or ''.
    """

    def note(run: RunAddress) -> str:
        return describe_refusal(refusal, manifest, run, report)

    tags = {
        OUTCOME_TAG: refusal.outcome,
        f"{TAG}refused_by": refusal.error["class"],
        f"{TAG}reason": refusal.reason[:_SENTENCE_LIMIT],
        **source_tags(refusal.lineage),
    }
    if manifest is not None:
        tags[f"{TAG}verdict"] = manifest.verdict
    name = run_title(f"{refusal.model} {refusal.outcome}", refusal.lineage)
    return StandaloneRun(
        REFUSAL_TAG, refusal.run, name, note,
        _to_milliseconds(refusal.began), _to_milliseconds(refusal.ended),
        run_metrics(manifest) if manifest else {}, has_failed=True, tags=tags,
        parameters=run_parameters(manifest) if manifest else None,
    )  # fmt: skip


def describe_refusal(
    refusal: Refusal, manifest: Manifest | None, run: RunAddress, report: str
) -> str:
    """Return the run's description in Markdown; `report` is its report's file name, or ''."""
    targets = add_column_gaps(targets_table(manifest)) if manifest and manifest.targets else ""
    source = refusal.lineage
    fields = {
        "repository": format_code(source.repository),
        "commit": format_code(source.commit),
        "delivered by": format_code(source.author),
        "delivery": f"`{manifest.delivery.short}`" if manifest else "",
        "flow run": link_run(refusal.page or refusal.run),
    }
    parts = [
        format_refusal(refusal),
        targets,
        f"[The whole report]({run.link(f'/artifacts/{report}')}): what was measured until then."
        if report else "",
        "\n".join(f"- {name}: {value}" for name, value in fields.items() if value),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def format_refusal(refusal: Refusal) -> str:
    """Return in Markdown that nothing was released, why, and what to do."""
    word = refusal.outcome.capitalize()
    return (
        f"{word}: nothing was released of {markdown_text(refusal.title)}.\n\n"
        f"{markdown_text(refusal.reason[:_SENTENCE_LIMIT])}\n\n"
        f"**What to do:** {markdown_text(refusal.error['remedy'][:_SENTENCE_LIMIT])}"
    )
