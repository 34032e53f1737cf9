"""The record's figures as the tables of its page."""

from __future__ import annotations

from collections.abc import Sequence

from handoff.artifacts.delivery.captures import COLUMNS, CaptureRow
from handoff.artifacts.delivery.signature import TensorSpec
from handoff.artifacts.recipe.gpu_generations import format_capabilities
from handoff.artifacts.release.evidence import BUSY, PassEffect, Timing
from handoff.artifacts.release.interval import format_package_size, ratio, size
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.tasks.report.cells import Cell, Table, Tone, format_count, format_number, table
from handoff.tasks.report.error_plots import format_milliseconds
from handoff.tasks.report.summary import describe_case, is_refused


def captures_table(manifest: Manifest) -> Table | None:
    """Return what each capture technology makes of the model, where the recipe asked for it."""
    rows = [(*_capture_cells(row), "; ".join(row.shortcomings)) for row in manifest.captures]
    return table("The capture table", (*COLUMNS, "reasons"), rows)


def _capture_cells(row: CaptureRow) -> tuple[str | Cell, ...]:
    method, captured, right, *rest = row.cells
    tone: Tone = "good" if row.is_right else "warn"
    return (
        method, Cell(captured, "" if row.captured else "warn"), Cell(right, tone if right else ""),
        *rest,
    )  # fmt: skip


def metrics_table(manifest: Manifest) -> Table | None:
    """Return the delivery's metric for each target: both values, what is lost, what was agreed."""
    columns = (
        "target", "metric", "of", "samples", "eager", "package", "lost", "bounds", "agreed", "",
    )  # fmt: skip
    tones: dict[str, Tone] = {"kept": "good", "broken": "bad"}
    rows = [
        (
            Cell(target.slug, "code"), one.name, Cell(one.output, "code"), str(one.samples),
            f"{one.eager:.4g}", f"{one.package:.4g}", one.lost,
            f"{one.bounds}, {one.confidence:.4g} sure each", one.agreed,
            Cell(one.standing, tones.get(one.standing, "warn")),
        )
        for target in manifest.targets
        if (one := target.metric) is not None
    ]  # fmt: skip
    return table("The delivery's metric", columns, rows)


def targets_table(manifest: Manifest) -> Table | None:
    """Return one row for each target: verdict, figures, and what it asks of a machine."""
    columns = (
        "target", "verdict", "max error", "RMSE / eager's", "speed-up", "size", "compiled in",
        "runs on",
    )  # fmt: skip
    rows = [
        (
            Cell(target.slug, "code"),
            verdict_cell(target),
            format_number(target.max_abs, ".2g"),
            "-" if target.rmse_ratio is None else ratio(target.rmse_ratio),
            _format_speed(target),
            format_package_size(target.size_bytes),
            f"{target.compile_s:.0f} s" + (f", {target.reused} reused" if target.reused else ""),
            _format_machine(target),
        )
        for target in manifest.targets
    ]
    return table("Targets", columns, rows)


def verdict_cell(target: TargetRecord) -> Cell:
    """Return a target's verdict in its colour."""
    tones: dict[str, Tone] = {"accepted": "good", "refused": "bad"}
    tone = tones.get(target.verdict, "warn")
    return Cell(target.standing, "warn" if target.accepted and target.unverified_gpus else tone)


def _format_speed(target: TargetRecord) -> str:
    if target.headline is None:
        return "-"
    return target.headline.over_eager.text + (", taken over" if target.taken_over else "")


def _format_machine(target: TargetRecord) -> str:
    fit = target.fit
    if fit is None:
        return "-"
    gpu = f", compute capability {format_capabilities(fit.gpu_members)}" if fit.gpu_members else ""
    glibc = f", glibc {fit.glibc}" if fit.glibc else ""
    return f"{fit.machine}, torch {fit.torch}{gpu}{glibc}"


def _unbounded_values(spec: TensorSpec) -> str:
    return "true or false" if spec.dtype == "bool" else "any"


def signature_table(manifest: Manifest) -> Table | None:
    """Return the packages' inputs, outputs and dynamic dimensions."""
    rows: list[Sequence[str | Cell]] = [
        (kind, Cell(spec.name, "code"), spec.dtype, " × ".join(map(str, spec.shape)) or "scalar",
         spec.values or (_unbounded_values(spec) if kind == "input" else ""), spec.origin)
        for kind, specs in (("input", manifest.signature.inputs),
                            ("output", manifest.signature.outputs))
        for spec in specs
    ]  # fmt: skip
    rows += [
        ("dimension", Cell(name, "code"), "", str(limits), "", limits.origin)
        for name, limits in manifest.signature.dimensions.items()
    ]
    return table("Inputs and outputs", ("", "name", "dtype", "shape", "values", "from"), rows)


def lineage_table(manifest: Manifest) -> Table | None:
    """Return where the release comes from, as far as it was said."""
    source = manifest.lineage
    rows: list[Sequence[str | Cell]] = [
        ("delivery", Cell(manifest.delivery, "code")),
        ("repository", source.repository),
        ("commit", Cell(source.commit, "code") if source.commit else ""),
        ("training run", source.training_run),
        ("delivered by", source.author),
        ("delivered", source.created),
        ("refused" if is_refused(manifest) else "released", manifest.created),
    ]
    if served := manifest.served:
        changed = ", ".join(served.changed)
        rows.append((f"changed since version {served.version}, then in production", changed))
    return table("Where it comes from", (), [row for row in rows if row[1]])


def findings_table(manifest: Manifest) -> Table | None:
    """Return what was noticed about the delivery, the gravest first."""
    order = ("unsound", "limit", "note")
    tones: dict[str, Tone] = {"unsound": "bad", "limit": "warn"}
    rows = [
        (
            Cell(one.severity, tones.get(one.severity, "")),
            Cell(one.code, "code"),
            Cell(one.where, "code") if one.where else "-",
            one.message,
            one.remedy,
        )
        for one in sorted(manifest.findings, key=lambda one: order.index(one.severity))
    ]
    return table("Findings", ("severity", "code", "where", "finding", "what to do"), rows)


def passes_table(manifest: Manifest) -> Table | None:
    """Return what each pass did, numbered as the picture numbers them."""
    rows = [
        (
            str(number),
            Cell(effect.name, "code"),
            effect.level,
            Cell("left out", "bad") if effect.left_out else _format_nodes(effect),
            f"{effect.max_abs:.1e}" + (" (intended)" if effect.intended else ""),
            "; ".join(filter(None, (effect.left_out, *effect.notes))),
        )
        for number, effect in enumerate(manifest.passes, start=1)
    ]
    columns = ("", "pass", "level", "nodes", "largest change of an output (float64)", "notes")
    return table("Passes, in order", columns, rows)


def _format_nodes(effect: PassEffect) -> str:
    return f"{effect.nodes_before} to {effect.nodes_after}" if effect.modified else "unchanged"


def timings_table(manifest: Manifest, target: TargetRecord) -> Table | None:
    """Return the seconds of eager and the package on each timed input."""
    timings = manifest.served.timings if manifest.served else ()
    served = {one.case: one.over_eager.text for one in timings if one.target == target.slug}
    rows = [
        (
            describe_case(t.case),
            _format_interval(t.eager_s, t.eager_low_s, t.eager_high_s),
            _format_interval(t.package_s, t.package_low_s, t.package_high_s),
            t.over_eager.text,
            *([served.get(t.case, "-")] if served else []),
            f"{t.rounds} rounds, {format_count(t.threads, 'thread')}" + _format_other_work(t),
        )
        for t in target.timings
    ]
    version = manifest.served.version if manifest.served else 0
    served_column = (f"version {version}, when it was released",) if served else ()
    columns = ("input", "eager", "package", "speed-up (95 %)", *served_column, "measured")
    return table("Latency", columns, rows)


def _format_other_work(timing: Timing) -> str:
    if timing.others is None or timing.others < BUSY:
        return ""
    return f", while other work used {timing.others:.1f} processors"


def _format_interval(median: float, low: float, high: float) -> str:
    text = format_milliseconds(median)
    if not high:
        return text
    return f"{text} ({format_milliseconds(low).removesuffix(' ms')} to {format_milliseconds(high)})"


def digests_table(manifest: Manifest) -> Table | None:
    """Return every digest that the release is known by."""
    rows: list[Sequence[str | Cell]] = [
        ("this record", Cell(manifest.digest, "code"), ""),
        ("delivery", Cell(manifest.delivery, "code"), ""),
        ("all that it was made from", Cell(manifest.fingerprint, "code"), ""),
    ]
    if manifest.plan:
        rows.append(("inputs that were compared", Cell(manifest.plan, "code"), ""))
    files = [*manifest.files, *(file for target in manifest.targets for file in target.files)]
    rows += [(f.path, Cell(f.digest, "code"), size(f.size_bytes)) for f in files]
    return table("Digests", ("", "SHA-256", "size"), rows)
