"""A refused release in MLflow: a run of its own beside those of the releases, with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.errors import BuildCrashed, error_from_record
from handoff.artifacts.mlflow.description import (
    RunAddress,
    as_code,
    linked_run,
    targets_table,
    with_gaps,
)
from handoff.artifacts.mlflow.own_runs import OwnRun
from handoff.artifacts.mlflow.tags import (
    HIDDEN,
    OUTCOME_TAG,
    TAG,
    run_metrics,
    run_parameters,
    run_title,
    source_tags,
)
from handoff.artifacts.printable import markdown_text, one_line
from handoff.artifacts.release.manifest import Manifest

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
        told = f"{self.error['what']}: expected {self.error['expected']}, got {self.error['got']}"
        return one_line(place + told)


def run_of_refusal(refusal: Refusal, manifest: Manifest | None) -> OwnRun:
    """Return the run that shows a refusal; `manifest` is what was measured until then."""
    tags = {
        OUTCOME_TAG: refusal.outcome,
        f"{TAG}refused_by": refusal.error["class"],
        f"{TAG}reason": refusal.reason[:_SENTENCE_LIMIT],
        **source_tags(refusal.lineage),
    }
    if manifest is not None:
        tags[f"{TAG}verdict"] = manifest.verdict
    name = run_title(f"{refusal.model} {refusal.outcome}", refusal.lineage)
    return OwnRun(
        REFUSAL_TAG, refusal.run, name, "",
        _milliseconds(refusal.began), _milliseconds(refusal.ended),
        run_metrics(manifest) if manifest else {}, has_failed=True, tags=tags,
        parameters=run_parameters(manifest) if manifest else None,
    )  # fmt: skip


def describe_refusal(
    refusal: Refusal, manifest: Manifest | None, run: RunAddress, report: str
) -> str:
    """Return the run's description in Markdown; `report` is its report's file name, or ''."""
    targets = with_gaps(targets_table(manifest)) if manifest and manifest.targets else ""
    source = refusal.lineage
    named = {
        "repository": as_code(source.repository),
        "commit": as_code(source.commit),
        "delivered by": as_code(source.author),
        "delivery": f"`{manifest.delivery.short}`" if manifest else "",
        "flow run": linked_run(refusal.page or refusal.run),
    }
    parts = [
        told_refusal(refusal),
        targets,
        f"[The whole report]({run.link(f'/artifacts/{report}')}): what was measured until then."
        if report else "",
        "\n".join(f"- {name}: {value}" for name, value in named.items() if value),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def told_refusal(refusal: Refusal) -> str:
    """Return in Markdown that nothing was released, why, and what to do."""
    word = refusal.outcome.capitalize()
    return (
        f"{word}: nothing was released of {markdown_text(refusal.title)}.\n\n"
        f"{markdown_text(refusal.reason[:_SENTENCE_LIMIT])}\n\n"
        f"**What to do:** {markdown_text(refusal.error['remedy'][:_SENTENCE_LIMIT])}"
    )


def _milliseconds(iso: str) -> int:
    return int(datetime.fromisoformat(iso).timestamp() * 1000)
