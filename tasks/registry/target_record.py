"""Target records: what the steps found out of one target becomes its part of the release record.

These are rules of a release, and nothing here runs a model: no torch is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import (
    BlessingRefused,
    HandoffError,
    StepCrashed,
)
from handoff.artifacts.machine.gpu import host_gpu_capabilities
from handoff.artifacts.recipe.search import INT8_QUANTIZER
from handoff.artifacts.recipe.target import CudaTarget
from handoff.artifacts.recipe.tolerance import largest_difference
from handoff.artifacts.release.culprit import Culprit
from handoff.artifacts.release.evidence import (
    Candidate,
    PassEffect,
    TorchCheck,
    why_unknown,
)
from handoff.artifacts.release.interval import ratio
from handoff.artifacts.release.manifest import TargetRecord
from handoff.tasks.compile.messages import CompileResult
from handoff.tasks.localize.messages import LocalizeResult
from handoff.tasks.localize.verdict import part_of_compiler
from handoff.tasks.optimize.messages import OptimizeResult
from handoff.tasks.probe.messages import ProbeResult
from handoff.tasks.timing.messages import BenchmarkResult, RaceLap
from handoff.tasks.verify.interpret.messages import InterpretResult
from handoff.tasks.verify.messages import ReferenceResult, VerifyResult


def bless(
    slug: str,
    compiled: CompileResult,
    reference: ReferenceResult,
    verified: VerifyResult,
    timed: BenchmarkResult | None,
) -> TargetRecord:
    """Return the record of a target that was compiled, accepted or not."""
    return TargetRecord(
        slug=slug,
        accepted=verified.accepted,
        reasons=verified.reasons,
        files=compiled.files,
        fit=compiled.fit.restrict_to_host_gpu(),
        deviations=verified.deviations,
        skipped=(*reference.skipped, *verified.left_out),
        timings=timed.timings if timed else (),
        compile_s=compiled.compile_s,
        size_bytes=sum(file.size_bytes for file in compiled.files),
        instruction_sets=compiled.instruction_sets,
        reused=compiled.reused,
        notes=(*verified.notes, *_timing_notes(slug, timed)),
        spreads=verified.spreads,
        atomic_sums=compiled.atomic_sums,
        metric=verified.metric,
    )


def with_mechanics(record: TargetRecord, probed: ProbeResult) -> TargetRecord:
    """Return a target's record with the mechanical gate: both have to accept it."""
    reasons = (*record.reasons, *probed.reasons)
    return replace(
        record,
        accepted=record.accepted and probed.accepted,
        reasons=reasons,
        mechanics=probed.mechanics,
    )


def _timing_notes(slug: str, timed: BenchmarkResult | None) -> Iterator[str]:
    if timed is None:
        return
    if slug.startswith("cuda"):
        yield f"differs from eager on the same GPU by at most {timed.apart:.2g}"
    for timing in timed.timings:
        if timing.speedup_high < 1.0 and timing.over_eager.is_known:
            speed = f"{ratio(timing.speedup)} times its speed ({timing.over_eager.span})"
            yield f"slower than eager at {timing.case}: {speed}"
    if reason := why_unknown(timed.timings):
        yield reason


def with_inside(
    outside: VerifyResult, nodes: tuple[str, ...], inside: VerifyResult | None
) -> VerifyResult:
    """Return a verdict together with that on values inside the graph, named `nodes`."""
    if inside is None:
        note = "nothing inside the graph that leads there changes with the inputs and is comparable"
        reasons = outside.reasons
        if {deviation.output for deviation in outside.deviations} <= set(outside.blind):
            reasons = (*reasons, "no comparison could fail: no output changes with the inputs")
        reasons += tuple(
            f"output {index} is not comparable: rounding alone moves more than a tenth of its "
            "elements by about their own size, and those of every value before it"
            for index in outside.incomparable
        )
        return replace(outside, notes=(*outside.notes, note), reasons=reasons)
    deviations = tuple(
        replace(d, case=f"inside, {nodes[d.output]}: {d.case}", special=True)
        for d in inside.deviations
    )
    return VerifyResult(
        (*outside.deviations, *deviations),
        tuple(f"inside the graph, at {', '.join(nodes)}: {reason}" for reason in inside.reasons),
        (*outside.notes, f"measured inside the graph instead, at {', '.join(nodes)}"),
        spreads=outside.spreads,
        incomparable=outside.incomparable,
        metric=outside.metric,
    )


def with_cause(record: TargetRecord, found: LocalizeResult | str) -> TargetRecord:
    """Return a refused target's record with what was found out of the cause, before the reasons."""
    if isinstance(found, str):
        reason = f"where it goes wrong was not found: {found}"
        return replace(record, reasons=(reason, *record.reasons))
    return replace(record, reasons=(found.verdict, *record.reasons), culprit=_culprit(found))


def _culprit(found: LocalizeResult) -> Culprit:
    names = [f"{node.name} ({node.target})" for node in found.nodes]
    places = [node.source_line or node.module_line for node in found.nodes]
    return Culprit(
        operator=" and ".join(names[:2]) + (f" and {len(names) - 2} more" if names[2:] else ""),
        where=", ".join(dict.fromkeys(filter(None, places[:2]))),
        options=found.options,
        made_by=found.at if found.cause == "program" else "",
        part=part_of_compiler(found),
        lacks_room=found.cause == "rounding",
        script=found.script if found.script_repeats else "",
    )


def unverified_record(target: CudaTarget, compiled: CompileResult) -> TargetRecord:
    """Return the record of a target that was compiled on a machine that can't run it."""
    here = ", ".join(f"{c / 10:.1f}" for c in host_gpu_capabilities()) or "no NVIDIA GPU"
    profiles = " and ".join(f"{profile.name} ({profile.slug})" for profile in target.profiles)
    gpus = "those GPUs" if target.further else "that GPU"
    return TargetRecord(
        slug=target.slug,
        accepted=False,
        reasons=(),
        files=compiled.files,
        fit=compiled.fit,
        compile_s=compiled.compile_s,
        size_bytes=sum(file.size_bytes for file in compiled.files),
        instruction_sets=compiled.instruction_sets,
        unverified=f"compiled for {profiles} on a machine with {here}: "
        f"its kernels were seen to be for {gpus}, and no GPU has run them",
        kernels=compiled.kernels,
    )


def with_source_check(record: TargetRecord, found: InterpretResult) -> TargetRecord:
    """Return the record of an unverified target with what running its kernels' sources has shown.

    A wrong kernel refuses it; where nothing could be run, nothing is claimed, and why is noted.
    """
    if found.reasons:
        return replace(record, reasons=found.reasons, notes=found.notes, unverified="")
    unchecked = f"its kernels' sources were not run: {found.unchecked}"
    notes = (*found.notes, *([unchecked] if found.checked is None else []))
    return replace(record, source_checked=found.checked, notes=notes)


def with_torches(record: TargetRecord, checks: tuple[TorchCheck, ...]) -> TargetRecord:
    """Return a target's record with how its package did in other versions of torch.

    It fits those where it was right, beside its own.
    """
    if not checks or record.fit is None:
        return record
    right = tuple(check.version for check in checks if check.is_right)
    return replace(record, torches=checks, fit=replace(record.fit, also=right))


def torch_check(version: str, found: VerifyResult | HandoffError) -> TorchCheck:
    """Return what comparing a package with another torch has shown; an error is its last word."""
    if isinstance(found, HandoffError):
        return TorchCheck(version, is_right=False, why=found.got or str(found))
    return TorchCheck(
        version, found.accepted, len(found.deviations), largest_difference(found.deviations),
        "; ".join(found.reasons[:3]),
    )  # fmt: skip


def with_lap(candidate: Candidate, lap: RaceLap | None) -> Candidate:
    """Return a candidate with what the race has measured of it."""
    if lap is None:
        return candidate
    return replace(
        candidate, times_s=lap.times_s, ratios=lap.ratios,
        ratios_low=lap.ratios_low, ratios_high=lap.ratios_high,
    )  # fmt: skip


def with_search(
    record: TargetRecord, candidates: tuple[Candidate, ...], chosen: str
) -> TargetRecord:
    """Return a target's record with what a search has tried; unchanged without one."""
    return replace(record, candidates=candidates, chosen=chosen) if candidates else record


def require_effect(variant: OptimizeResult, plain: OptimizeResult) -> tuple[PassEffect, ...]:
    """Return what a variant's own passes did; raise `BlessingRefused` where they did nothing."""
    effects = variant.effects[len(plain.effects) :]
    int8 = [effect for effect in effects if effect.name == INT8_QUANTIZER]
    if any(effect.modified for effect in int8 or effects):
        return effects
    raise BlessingRefused(
        "the variant would be the plain package",
        expected="a pass that finds something to change",
        got="; ".join(f"{e.name}: {e.left_out or 'nothing to change'}" for e in effects),
        remedy="Leave it out of the search's candidates",
    )


def require_new(compiled: CompileResult, known_libraries: Mapping[Digest, str]) -> None:
    """Raise `BlessingRefused` where `known_libraries` (by digest) has the variant's library."""
    if name := known_libraries.get(compiled.library.digest):
        raise BlessingRefused(
            f"the variant is the package of {name!r}, byte for byte",
            expected="another library",
            got="what there is already",
            remedy="Leave it out of the search's candidates",
        )


def refuse_target(slug: str, error: HandoffError) -> TargetRecord:
    """Return the record of a target that has no package, because of `error`."""
    crashed = isinstance(error, StepCrashed)
    return TargetRecord(slug, accepted=False, reasons=(str(error),), files=(), fit=None,
                        crashed=crashed)  # fmt: skip


@dataclass(frozen=True)
class BuiltTargets:
    """The records of all targets, what they were compiled with, and the input plan's digest.

    `asked` has the cases that ask for known faults of the toolchain, by the faults' names.
    """

    records: tuple[TargetRecord, ...]
    toolchain: dict[str, str]
    plan: str
    asked: dict[str, str] = field(default_factory=dict)
