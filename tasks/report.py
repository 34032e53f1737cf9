"""Report: the release record as a page that reads well in MLflow (Markdown)."""

from __future__ import annotations

from collections.abc import Sequence

from artifacts.evidence import PassEffect, pareto
from artifacts.manifest import Manifest, TargetRecord
from tasks.plots import has_search_picture, search_picture_name
from tasks.report_mechanics import hostile_rows, mechanics_rows


def render(manifest: Manifest) -> str:
    """Return the report: verdict and targets first, then lineage, findings, passes and evidence."""
    parts = [
        f"# {manifest.model}: {_verdict(manifest)}",
        _targets(manifest),
        _serving(manifest),
        _lineage(manifest),
        _findings(manifest),
        _passes(manifest),
        *[_evidence(target) for target in manifest.targets],
        _toolchain(manifest),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict(manifest: Manifest) -> str:
    verdicts = [target.verdict for target in manifest.targets]
    blessed = "refused" if "refused" in verdicts else ", ".join(dict.fromkeys(verdicts))
    return f"{blessed}, delivery {manifest.verdict}"


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _targets(manifest: Manifest) -> str:
    columns = ("target", "verdict", "max error", "RMSE / eager's", "speed-up", "compiled in")
    rows = [
        (
            target.slug,
            "**refused**" if target.verdict == "refused" else target.verdict,
            _number(target.max_abs, ".2e"),
            _number(target.rmse_ratio, ".2f"),
            _number(target.speedup, ".2f"),
            f"{target.compile_s:.0f} s",
        )
        for target in manifest.targets
    ]
    return _table(columns, rows)


def _serving(manifest: Manifest) -> str:
    shapes = [f"`{spec}`" for spec in manifest.signature.inputs]
    results = [f"`{spec}`" for spec in manifest.signature.outputs]
    ranges = [f"{n} from {d.min} to {d.max}" for n, d in manifest.signature.dimensions.items()]
    limits = f" Dimensions: {', '.join(ranges)}." if ranges else ""
    return (
        f"Takes {', '.join(shapes)}; gives {', '.join(results)}.{limits}\n\n"
        f"    handoff pull {manifest.model}@candidate --to {manifest.model}\n"
        f"    handoff verify {manifest.model} --delivery DELIVERY    the comparison below, again"
    )


def _lineage(manifest: Manifest) -> str:
    source = manifest.lineage
    rows = [
        ("delivery", f"`{manifest.delivery}`"),
        ("repository", source.repository),
        ("commit", source.commit),
        ("training run", source.training_run),
        ("delivered by", source.author),
        ("released", manifest.created),
    ]
    return "## Lineage\n\n" + _table(("", ""), [row for row in rows if row[1]])


def _findings(manifest: Manifest) -> str:
    rows = [(f.severity, f.code, f.where, f.message, f.remedy) for f in manifest.findings]
    table = _table(("severity", "code", "where", "finding", "what to do"), rows)
    return f"## Findings\n\n{table}" if table else ""


def _passes(manifest: Manifest) -> str:
    rows = [
        (
            effect.name,
            effect.level,
            _nodes(effect),
            f"{effect.max_abs:.1e}" + (" (intended)" if effect.intended else ""),
        )
        for effect in manifest.passes
    ]
    table = _table(("pass", "level", "nodes", "outputs moved, in float64"), rows)
    notes = [f"- `{effect.name}`: {note}" for effect in manifest.passes for note in effect.notes]
    return (
        "\n\n".join(["## Passes", table, *(["\n".join(notes)] if notes else [])]) if table else ""
    )


def _nodes(effect: PassEffect) -> str:
    if effect.left_out:
        return f"**left out**: {effect.left_out}"
    return f"{effect.nodes_before} to {effect.nodes_after}" if effect.modified else "unchanged"


SEARCH_COLUMNS = ("variant", "", "x plain", "95 %", "max error", "size", "compile", "why not")


def search_rows(target: TargetRecord) -> list[tuple[str, ...]]:
    """Return one row for each variant that a search tried; `*` marks the Pareto front.

    The front is that of speed, error, size and compile time; ratios are those at the largest input.
    """
    front = pareto(target.candidates)
    return [
        (
            one.name,
            "shipped" if one.name == target.chosen else "*" if one in front else "",
            f"{one.ratios[-1]:.2f}" if one.ratios else "-",
            f"{one.ratios_low[-1]:.2f} to {one.ratios_high[-1]:.2f}" if one.ratios else "-",
            f"{one.max_abs:.2g}" if one.compile_s else "-",
            f"{one.size_bytes / 1e6:.1f} MB" if one.size_bytes else "-",
            f"{one.compile_s:.1f} s" if one.compile_s else "-",
            "; ".join(one.reasons)[:160],
        )
        for one in target.candidates
    ]


def _mechanics(target: TargetRecord) -> str:
    found = target.mechanics
    if found is None:
        return ""
    hostile = hostile_rows(found)
    guarded = _table(("input", "the package alone", "with its checks", "told"), hostile)
    parts = [
        "### Without Python",
        _table(("", ""), mechanics_rows(found)),
        f"{len(found.trials)} hostile inputs; the package alone refuses all but these:"
        if hostile else f"{len(found.trials)} hostile inputs, all refused.",
        guarded,
        "\n".join(f"- {note}" for note in found.notes),
        # Fenced, because indented lines would belong to the list before them.
        "\n".join(["```", *(command[:200] for command in found.commands), "```"])
        if found.commands else "",
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part)


def _evidence(target: TargetRecord) -> str:
    rows = [
        (
            d.case,
            str(d.output),
            f"{d.max_abs:.2e}",
            f"{d.rmse_package:.2e}",
            f"{d.rmse_eager:.2e}",
            f"{d.required_rtol:.1e}",
            "yes" if d.accepted else "**no**",
        )
        for d in target.deviations
    ]
    columns = ("input", "output", "max error", "RMSE", "eager's RMSE", "needs rtol", "accepted")
    timings = [
        (
            t.case,
            f"{t.eager_s * 1e3:.3g} ms",
            f"{t.package_s * 1e3:.3g} ms",
            f"{t.speedup:.2f} ({t.speedup_low:.2f} to {t.speedup_high:.2f})",
        )
        for t in target.timings
    ]
    search = search_rows(target)
    parts = [
        f"## {target.slug}",
        "\n".join(f"- refused: {reason}" for reason in target.reasons),
        f"Not yet verified: {target.unverified}." if target.unverified else "",
        _table(columns, rows),
        "\n".join(f"- not compared at {text}" for text in target.skipped),
        "\n".join(f"- {note}" for note in target.notes),
        _table(("input", "eager", "package", "speed-up (95 %)"), timings),
        "\n".join(f"- `{kernel}`" for kernel in target.kernels),
        f"### The search\n\n{_table(SEARCH_COLUMNS, search)}" if search else "",
        f"Drawn in `{search_picture_name(target)}`." if has_search_picture(target) else "",
        _mechanics(target),
        f"Instruction sets: {', '.join(target.instruction_sets) or 'none beyond SSE2'}.",
    ]
    return "\n\n".join(part for part in parts if part)


def _toolchain(manifest: Manifest) -> str:
    return "## Toolchain\n\n" + _table(("", ""), list(manifest.toolchain.items()))
