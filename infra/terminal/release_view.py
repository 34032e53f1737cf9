"""One release as the object that `--json` prints, and as the tables that a person reads."""

from __future__ import annotations

from typing import Any

from handoff.artifacts.record import to_plain
from handoff.artifacts.release.coverage import closest_call, describe_compared_inputs
from handoff.artifacts.release.interval import format_package_size, ratio
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.infra.terminal.console import fit_to_terminal, print_findings, print_table, seconds
from handoff.infra.terminal.output import echo
from handoff.tasks.report.numbers import search_columns, search_rows


def release_object(
    manifest: Manifest, *, version: int | None, aliases: tuple[str, ...], report: str
) -> dict[str, Any]:
    """Return the object that `release` and `show` print; `version` is None for a refusal."""
    return {
        "model": manifest.model,
        "version": version,
        "aliases": list(aliases),
        "verdict": manifest.verdict,
        "findings": to_plain(manifest.findings),
        "lineage": to_plain(manifest.lineage),
        "targets": [_target_object(target) for target in manifest.targets],
        "manifest": str(manifest.digest),
        "report": report,
    }


def _target_object(target: TargetRecord) -> dict[str, Any]:
    return {
        "slug": target.slug,
        "accepted": target.accepted,
        "reasons": list(target.reasons),
        "unverified": target.unverified,
        "unverified_gpus": list(target.unverified_gpus),
        "emulated": target.emulated,
        "source_checked": to_plain(target.source_checked),
        "torches": to_plain(target.torches),
        "deviations": to_plain(target.deviations),
        "skipped": list(target.skipped),
        "notes": list(target.notes),
        "max_abs": target.max_abs,
        "rmse_ratio": target.rmse_ratio,
        "metric": to_plain(target.metric),
        "speedup": target.speedup,
        "timings": to_plain(target.timings),
        "taken_over": to_plain(target.taken_over),
        "compile_s": target.compile_s,
        "reused": target.reused,
        "instruction_sets": list(target.instruction_sets),
        "candidates": to_plain(target.candidates),
        "chosen": target.chosen,
        "kernels": list(target.kernels),
        "files": to_plain(target.files),
    }


def print_release(
    manifest: Manifest, *, version: int | None, aliases: tuple[str, ...], report: str = ""
) -> None:
    """Print a release for a person: what was noticed, how fast it is, and each target's outcome.

    `report` is the address of the version's report. Why a target is refused is not printed: the
    refusal itself, which follows, says that.
    """
    title = f"{manifest.model} version {version}" if version else f"{manifest.model}, not released"
    suffix = f" ({', '.join('@' + alias for alias in aliases)})" if aliases else ""
    echo(f"\n{title}{suffix}: record {manifest.digest.short}, delivery {manifest.verdict}")
    print_findings(manifest.findings, again=True)
    timings = [row for target in manifest.targets for row in _timing_rows(target)]
    if timings:
        print_table("", _TIMING_COLUMNS, timings)
    for effect in manifest.passes:
        if effect.left_out:
            echo("  " + fit_to_terminal(f"left out: {effect.left_out}", 2))
    for target in manifest.targets:
        if target.candidates:
            columns = search_columns(target)
            print_table(f"{target.slug}: the search", columns, search_rows(target))
        inputs = "; ".join(describe_compared_inputs(manifest.signature, target))
        notes = (
            *([f"compared on inputs {inputs}"] if inputs else []),
            *(f"not compared: {text}" for text in target.skipped),
            *target.notes,
            *([target.taken_over.text] if target.taken_over else []),
            *([f"not yet verified: {target.unverified}"] if target.unverified else []),
            *([target.unverified_gpus_text] if target.accepted else []),
            *([target.source_checked.text] if target.source_checked else []),
            *([f"verified under emulation: {target.emulated}"] if target.emulated else []),
            *(check.text for check in target.torches),
        )
        for text in filter(None, notes):
            echo("  " + fit_to_terminal(f"{target.slug}: {text}", 2))
    if manifest.targets:
        print_table("", _COLUMNS, [_summary_row(manifest, target) for target in manifest.targets])
    if report:
        echo(f"Report: {report}")


_TIMING_COLUMNS = ("target", "input", "eager", "package", "speed-up", "95 %")
_COLUMNS = ("target", "verdict", "largest error", "rtol needed", "speed-up (95 %)", "size")


def _timing_rows(target: TargetRecord) -> list[tuple[str, ...]]:
    return [
        (
            target.slug,
            timing.case,
            seconds(timing.eager_s),
            seconds(timing.package_s),
            ratio(timing.speedup) if timing.over_eager.is_known else "not known",
            timing.over_eager.span,
        )
        for timing in target.timings
    ]


def _summary_row(manifest: Manifest, target: TargetRecord) -> tuple[str, ...]:
    verdict: str = "REFUSED" if target.verdict == "refused" else target.standing
    if target.accepted and target.undecided_shares:
        share = max(share for _, share in target.undecided_shares)
        verdict += f", {share:.2%} not comparable"
    error = "-" if target.max_abs is None else f"{target.max_abs:.2g}"
    if target.is_wrong_on_special_inputs_alone:
        error += ", wrong on special inputs"
    size = format_package_size(target.size_bytes)
    speed = target.headline.over_eager.text if target.headline else "-"
    return (target.slug, verdict, error, _rtol_needed(manifest, target), speed, size)


def _rtol_needed(manifest: Manifest, target: TargetRecord) -> str:
    """Return the `rtol` that the closest call needed of the agreed one; integers have none."""
    call = closest_call(manifest, target)
    if call is not None:
        return str(call)
    return target.metric.brief if target.metric and target.metric.decides else "-"
