"""A version's description in MLflow: a short page in Markdown, the verdict first."""

from __future__ import annotations

import re
from dataclasses import dataclass

from handoff.artifacts.digest import Digest
from handoff.artifacts.mlflow.tags import mechanical_blessing, numeric_blessing, speed, verdict
from handoff.artifacts.printable import one_line
from handoff.artifacts.release.coverage import closest_call
from handoff.artifacts.release.interval import format_package_size, ratio
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.artifacts.release.statement import Claim

_RUN_ID = re.compile(r"(?:runs:/|.*/runs/|)([0-9a-f]{32})(?:[/?#].*)?")

# Of a page: nothing in it ends a link of Markdown's.
PLAIN_ADDRESS = re.compile(r"https?://[A-Za-z0-9.:/_?=&%#@~+-]{1,500}")

# MLflow's pages have these, and no setting takes them away.
_NO_PROMOTION = (
    "**Aliases are moved by `handoff promote {name} --to production`**, which checks and signs it. "
    "The pencil next to an alias and *Promote model* above change MLflow's pages alone: what is "
    "served stays as it is, and the next release or `handoff sync` puts the aliases back."
)


@dataclass(frozen=True)
class RunAddress:
    """Where MLflow's pages show a run."""

    experiment: str
    run: str

    def link(self, place: str = "") -> str:
        """Return the address of a `place` on the run's page, relative to the UI's own.

        Without its query MLflow's pages show what there is for language models.
        """
        run = f"#/experiments/{self.experiment}/runs/{self.run}"
        return f"{run}{place}?workflowType=machine_learning"


def parse_run_id(training_run: str) -> str | None:
    """Return the id of the MLflow run that a lineage names, or None where it names none.

    It may be the id alone, `runs:/ID`, or the address of the run's page.
    """
    match = _RUN_ID.fullmatch(training_run.strip())
    return match.group(1) if match else None


def describe_version(
    manifest: Manifest, claim: Claim, release: Digest, run: RunAddress, *,
    report: str, training: RunAddress | None, flow_run: str = "",
) -> str:  # fmt: skip
    """Return the description of a version; `report` is the report's file name in the run.

    `training` is the run of the same MLflow that trained the model, and `flow_run` the page or the
    id of the Prefect run that released it, where they are known.
    """
    name = f"{manifest.model}@{claim.version}"
    page = run.link(f"/artifacts/{report}")
    # Plain, because the list of versions shows the first words as they are.
    fast = f", {speedup} eager's speed" if (speedup := speed(manifest)) else ""
    parts = [
        f"{verdict(manifest).capitalize()}{fast}. Numbers: {numeric_blessing(manifest)}. "
        f"Without Python: {mechanical_blessing(manifest)}. Delivery: {manifest.verdict}.",
        add_column_gaps(targets_table(manifest)),
        describe_taken_over(manifest),
        _describe_changes(manifest, claim.version),
        f"[The whole report]({page}): every comparison, timing and finding."
        if report else "",
        f"```\nhandoff pull {name} --to {manifest.model}\n```",
        _format_lineage(manifest, claim, release, training, flow_run),
        _NO_PROMOTION.format(name=name),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def number_note(version: int, listed: int) -> str:
    """Return what a description says where MLflow counts otherwise than the ledger; else ''."""
    if version == listed:
        return ""
    return (
        f"\n**This is version {version} of the release ledger.** MLflow counts it as {listed}, "
        "because other versions are listed here than were released; the tag `handoff.version` "
        "is right.\n"
    )


def retired_note(model: str, version: int) -> str:
    """Return what the description of a retired version begins with."""
    return (
        f"**Retired**: `handoff pull {model}@{version}` and `handoff promote` refuse it, and "
        "`handoff gc` may remove its files. What follows was said when it was released.\n\n"
    )


def targets_table(manifest: Manifest) -> str:
    """Return each target's figures as a table in Markdown."""
    columns: tuple[str, ...] = (
        "target", "largest error", "rtol needed", "RMSE / eager's", "speed-up (95 %)", "size",
    )  # fmt: skip
    rows = [_target_row(manifest, target) for target in manifest.targets]
    if any(target.metric for target in manifest.targets):
        columns = (*columns, "metric")
        metrics = [one.metric.brief if one.metric else "-" for one in manifest.targets]
        rows = [(*row, metric) for row, metric in zip(rows, metrics, strict=True)]
    rows = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def add_column_gaps(markdown: str) -> str:
    """Return Markdown for MLflow, whose tables have no space between the columns."""
    return "\n".join(
        line.replace(" | ", " &emsp; | ") if line.startswith("| ") and "| ---" not in line else line
        for line in markdown.split("\n")
    )


def describe_taken_over(manifest: Manifest) -> str:
    """Return a sentence for each target whose figures of speed are another package's."""
    return "\n\n".join(
        f"`{target.slug}`: {target.taken_over.text}."
        for target in manifest.targets
        if target.taken_over
    )


def _describe_changes(manifest: Manifest, version: int) -> str:
    served = manifest.served
    if served is None:
        return ""
    changed = ", ".join(served.changed)
    versions = f"{manifest.model}@{served.version} {manifest.model}@{version}"
    return (
        f"Changed since version {served.version}, which was in production: {changed}. Side by side "
        f"on a page: `handoff diff {versions} --html difference.html`."
    )


def _target_row(manifest: Manifest, target: TargetRecord) -> tuple[str, ...]:
    return (
        f"`{target.slug}`",
        "-" if target.max_abs is None else f"{target.max_abs:.1e}",
        str(closest_call(manifest, target) or "-"),
        "-" if target.rmse_ratio is None else ratio(target.rmse_ratio),
        target.headline.over_eager.text if target.headline else "-",
        format_package_size(target.size_bytes),
    )


def _format_lineage(
    manifest: Manifest, claim: Claim, release: Digest, training: RunAddress | None, flow_run: str
) -> str:
    source = manifest.lineage
    trained = format_code(source.training_run)
    if training:
        trained = f"[{training.run}]({training.link()})"
    fields = {
        "repository": format_code(source.repository),
        "commit": format_code(source.commit),
        "training run": trained,
        "delivered by": format_code(source.author),
        "released": manifest.created,
        "flow run": link_run(flow_run),
        "delivery": f"`{manifest.delivery.short}`",
        "record": f"`{claim.manifest.short}`",
        "signed statement": f"`{release.short}`",
    }
    return "\n".join(f"- {name}: {value}" for name, value in fields.items() if value)


def link_run(flow_run: str) -> str:
    """Return a flow run's id with a link to its page, or as it is where that is all there is."""
    name = flow_run.rpartition("/")[2]
    if "://" not in flow_run:
        return format_code(name)
    return f"[{name}]({flow_run})" if PLAIN_ADDRESS.fullmatch(flow_run) else format_code(flow_run)


def format_code(text: str) -> str:
    """Return a delivery's own words as code, so that they make no page of their own.

    Nothing in them ends the code early.
    """
    short = one_line(re.sub(r"[`|\s]+", " ", text).strip()[:200])
    return f"`{short}`" if short else ""
