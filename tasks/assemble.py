"""Assemble: what the steps found out becomes the release record, or a refusal.

These are the rules of a release, and nothing here runs a model: no torch is imported.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from artifacts.captures import CaptureRow
from artifacts.changes import TRIAL_ALIAS, TRIAL_ALIASES
from artifacts.delivery import EXAMPLES_FILE, DeliveryContract, Lineage
from artifacts.digest import Digest, digest_file
from artifacts.driver import host_gpu_capabilities
from artifacts.errors import (
    BlessingRefused,
    BuildCrashed,
    DeliveryUnsound,
    HandoffError,
    StepCrashed,
    UsageProblem,
)
from artifacts.evidence import Candidate, PassEffect, Served
from artifacts.localization import LocalizeResult
from artifacts.manifest import MANIFEST_FILE, Manifest, PackageFile, TargetRecord
from artifacts.probes import ProbeResult
from artifacts.recipe import Recipe
from artifacts.signature import ModelSignature
from artifacts.steps import (
    BenchmarkResult,
    CompileResult,
    IntakeResult,
    OptimizeResult,
    RaceLap,
    ReferenceResult,
    TraceabilityResult,
    VerifyResult,
)
from artifacts.target import CudaTarget
from tasks.evidence import evidence


@dataclass(frozen=True)
class BuiltTargets:
    """The records of all targets, what they were compiled with, and the input plan's digest."""

    records: tuple[TargetRecord, ...]
    toolchain: dict[str, str]
    plan: str


def with_source(taken: IntakeResult, model: str, said: Lineage) -> IntakeResult:
    """Return what was taken in with the source that was told for it.

    Raises `UsageProblem` where the delivery is another model's, or says another commit.
    """
    contract = taken.contract
    try:
        if model not in ("", contract.model.name):
            raise ValueError(f"expected the model {model}, got {contract.model.name}")
        source = contract.source.completed(said)
    except ValueError as error:
        expected, _, got = str(error).partition(", got ")
        raise UsageProblem(
            "the delivery is not the one that was announced",
            expected=expected.removeprefix("expected "), got=got,
            remedy="Announce what the delivery is, or deliver what was announced",
        ) from error  # fmt: skip
    return replace(taken, contract=replace(contract, source=source))


def refuse_unsound(result: TraceabilityResult) -> None:
    """Raise `DeliveryUnsound` with every finding that makes the delivery so."""
    grave = [finding for finding in result.findings if finding.severity == "unsound"]
    if not grave:
        return
    raise DeliveryUnsound(
        "the delivery would not compute what was trained",
        expected="a sound graph",
        got="; ".join(f"{f.message} [{f.code}]" for f in grave),
        remedy=". ".join(dict.fromkeys(finding.remedy for finding in grave)),
        where=grave[0].where,
    )


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
        fit=compiled.fit,
        deviations=verified.deviations,
        skipped=reference.skipped,
        timings=timed.timings if timed else (),
        compile_s=compiled.compile_s,
        size_bytes=sum(file.size_bytes for file in compiled.files),
        instruction_sets=compiled.instruction_sets,
        reused=compiled.reused,
        notes=(*verified.notes, *_notes_of(slug, timed)),
        spreads=verified.spreads,
    )


def with_mechanics(record: TargetRecord, probed: ProbeResult) -> TargetRecord:
    """Return a target's record with the mechanical blessing: both have to accept it."""
    reasons = (*record.reasons, *probed.reasons)
    return replace(
        record,
        accepted=record.accepted and probed.accepted,
        reasons=reasons,
        mechanics=probed.mechanics,
    )


def signature_of(contract: DeliveryContract, optimized: OptimizeResult) -> ModelSignature:
    """Return what the packages take, as delivered, and what they give, as captured."""
    dimensions = {**contract.dimensions, **optimized.computed_dimensions}
    return ModelSignature(contract.inputs, optimized.outputs, dimensions)


def _notes_of(slug: str, timed: BenchmarkResult | None) -> tuple[str, ...]:
    if timed is None or not slug.startswith("cuda"):
        return ()
    return (f"differs from eager on the same GPU by at most {timed.apart:.2g}",)


def with_inside(
    outside: VerifyResult, nodes: tuple[str, ...], inside: VerifyResult | None
) -> VerifyResult:
    """Return a verdict together with that on values inside the graph, named `nodes`."""
    if inside is None:
        note = "nothing inside the graph that leads there changes with the inputs"
        reasons = outside.reasons
        if {deviation.output for deviation in outside.deviations} <= set(outside.blind):
            reasons = (*reasons, "no comparison could fail: no output changes with the inputs")
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
    )


def with_cause(record: TargetRecord, found: LocalizeResult | str) -> TargetRecord:
    """Return a refused target's record with what was found out of the cause, before the reasons."""
    if isinstance(found, str):
        told = f"where it goes wrong was not found out: {found}"
    else:
        told = found.verdict + (f" ({found.script})" if found.script else "")
    return replace(record, reasons=(told, *record.reasons))


def built_only(target: CudaTarget, compiled: CompileResult) -> TargetRecord:
    """Return the record of a target that was compiled on a machine that can't run it."""
    here = ", ".join(f"{c / 10:.1f}" for c in host_gpu_capabilities()) or "no NVIDIA GPU"
    return TargetRecord(
        slug=target.slug,
        accepted=False,
        reasons=(),
        files=compiled.files,
        fit=compiled.fit,
        compile_s=compiled.compile_s,
        size_bytes=sum(file.size_bytes for file in compiled.files),
        instruction_sets=compiled.instruction_sets,
        unverified=f"compiled for {target.profile.name} (sm_{target.sm}) on a machine with {here}: "
        "its kernels were seen to be for that GPU, and nothing was run",
        kernels=compiled.kernels,
    )


def require_trial_alias(recipe: Recipe, alias: str) -> None:
    """Raise `BlessingRefused` where a package that nobody has run would get a further alias."""
    targets = recipe.resolved_targets()
    unverified = [t.slug for t in targets if isinstance(t, CudaTarget) and not t.is_here]
    if unverified and alias not in TRIAL_ALIASES:
        raise BlessingRefused(
            f"the alias {alias} can't be set on this release",
            expected=f"{TRIAL_ALIAS}, as long as {', '.join(unverified)} is not yet verified",
            got=alias,
            remedy=f"Leave --alias out; verify the package on its GPU before it gets {alias}",
        )


def require_effect(variant: OptimizeResult, plain: OptimizeResult) -> tuple[PassEffect, ...]:
    """Return what a variant's own passes did; raise `BlessingRefused` where they did nothing."""
    effects = variant.effects[len(plain.effects) :]
    if any(effect.modified for effect in effects):
        return effects
    raise BlessingRefused(
        "the variant would be the plain package",
        expected="a pass that finds something to change",
        got="; ".join(f"{e.name}: {e.left_out or 'nothing to change'}" for e in effects),
        remedy="Leave it out of the search's candidates",
    )


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


def adopt(winner: Path, folder: Path) -> None:
    """Put a candidate's packages in the place of the plain ones."""
    shutil.rmtree(folder)
    winner.rename(folder)


def refuse_target(slug: str, error: HandoffError) -> TargetRecord:
    """Return the record of a target that has no package, because of `error`."""
    crashed = isinstance(error, StepCrashed)
    return TargetRecord(slug, accepted=False, reasons=(str(error),), files=(), fit=None,
                        crashed=crashed)  # fmt: skip


def assemble(
    folder: Path,
    *,
    recipe: Recipe,
    taken: IntakeResult,
    judged: TraceabilityResult,
    fingerprint: Digest,
    optimized: OptimizeResult,
    signature: ModelSignature,
    built: BuiltTargets,
    captures: tuple[CaptureRow, ...] = (),
    served: Served | None = None,
) -> Manifest:
    """Write the manifest and the shared files to the release's `folder`; return the manifest.

    Where a target is refused, the report is written beside them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shared = []
    examples = taken.staging / EXAMPLES_FILE
    if examples.exists():
        copy = Path(shutil.copy2(examples, folder / EXAMPLES_FILE))
        size = copy.stat().st_size
        shared.append(PackageFile(EXAMPLES_FILE, digest_file(copy), size))
    contract = taken.contract
    manifest = Manifest(
        model=contract.model.name,
        delivery=taken.digest,
        fingerprint=fingerprint,
        verdict=judged.verdict,
        signature=signature,
        recipe=recipe,
        lineage=contract.source,
        targets=built.records,
        files=tuple(shared),
        findings=judged.findings,
        passes=optimized.effects,
        toolchain=built.toolchain,
        plan=built.plan,
        graphs=optimized.graphs,
        captures=captures,
        served=served,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    if refused_targets(manifest):
        # What is accepted is uploaded with its report; of this there is none but here.
        for name, data in evidence(manifest).items():
            (folder / name).write_bytes(data)
    return manifest


def refused_targets(manifest: Manifest) -> list[TargetRecord]:
    """Return the targets that can't be stood behind."""
    return [target for target in manifest.targets if target.verdict == "refused"]


def require_accepted(manifest: Manifest) -> None:
    """Raise `BlessingRefused` unless every target was accepted: a release is all or nothing.

    It is `BuildCrashed` where no target was found to be wrong.
    """
    refused = refused_targets(manifest)
    if not refused:
        return
    reasons = [f"{target.slug}: {reason}" for target in refused for reason in target.reasons]
    shown = "; ".join(reasons[:5]) + (f"; and {len(reasons) - 5} more" if len(reasons) > 5 else "")
    kind = BuildCrashed if all(target.crashed for target in refused) else BlessingRefused
    raise kind(
        f"{manifest.model} is not released, because its package can't be stood behind",
        expected="every target within the agreed tolerance",
        got=shown,
        remedy="Nothing was registered. Look at the passes and options in the recipe, or agree on "
        "another tolerance there",
    )
