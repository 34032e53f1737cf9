"""The variants of one target's package: each compiled, verified, and raced against the others."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from handoff.artifacts.conformance.table import KnownFault
from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import BlessingRefused, BudgetSpent, HandoffError, StepCrashed
from handoff.artifacts.recipe.search import Search
from handoff.artifacts.recipe.target import CpuTarget, Target
from handoff.artifacts.recipe.tolerance import largest_difference
from handoff.artifacts.release.evidence import Candidate, PassEffect
from handoff.flows.steps import compile_package, optimize, race, tap, verify
from handoff.tasks.compile.messages import CompileJob, CompileResult
from handoff.tasks.optimize.messages import OptimizeResult
from handoff.tasks.registry import target_record
from handoff.tasks.release.processes import Processes
from handoff.tasks.steps import COMPILE
from handoff.tasks.timing.messages import RaceJob
from handoff.tasks.verify.messages import ReferenceResult, TapResult, VerifyResult
from handoff.tasks.verify.torch_versions.messages import TorchEnvironment

PLAIN = "plain"


@dataclass(frozen=True)
class TargetContext:
    """What the work on one target goes by; `known` are the toolchain's faults in its graph."""

    processes: Processes
    target: Target
    optimized: OptimizeResult
    reference: ReferenceResult
    signature: ModelSignature
    torches: tuple[TorchEnvironment, ...] = ()
    known: tuple[KnownFault, ...] = ()


@dataclass(frozen=True)
class Variant:
    """A package that was compiled and verified, and what is reported of it."""

    folder: Path
    compiled: CompileResult
    verified: VerifyResult
    candidate: Candidate


def verify_variant(
    context: TargetContext,
    name: str,
    job: CompileJob,
    compiled: CompileResult,
    limit_s: float = COMPILE.limit_s,
) -> Variant:
    """Verify a variant; return it, accepted or not.

    One that came from the cache and is wrong here is compiled again once, in `limit_s` seconds:
    what another machine or torch has left is no verdict on the model.
    """
    checked = _check_once(context, name, job, compiled)
    if checked.verified.accepted or not compiled.reused:
        return checked
    fresh = replace(job, fresh=True)
    return _check_once(context, name, fresh, compile_variant(context, name, fresh, limit_s))


def compile_variant(
    context: TargetContext, name: str, job: CompileJob, limit_s: float
) -> CompileResult:
    """Compile a variant, or the plain package."""
    slug = context.target.slug
    label = slug if name == PLAIN else f"{slug} {name}"
    return compile_package(context.processes.compiler(context.target), job, label, limit_s)


def _check_once(
    context: TargetContext, name: str, job: CompileJob, compiled: CompileResult
) -> Variant:
    verified = compare(context, job, compiled)
    inconclusive = (*verified.blind, *verified.incomparable)
    if verified.accepted and inconclusive:
        verified = target_record.with_inside(
            verified, *compare_inner_values(context, job, inconclusive)
        )
    candidate = Candidate(
        name=name,
        accepted=verified.accepted,
        reasons=verified.reasons,
        compile_s=compiled.compile_s,
        size_bytes=compiled.library.size_bytes,
        max_abs=largest_difference(verified.deviations) or 0.0,
        metric=verified.metric,
    )
    return Variant(job.folder, compiled, verified, candidate)


def compare(
    context: TargetContext,
    job: CompileJob,
    compiled: CompileResult,
    tapped: TapResult | None = None,
) -> VerifyResult:
    """Compare the packages that `job` has made with the reference, or with what was tapped."""
    processes, slug = context.processes, context.target.slug
    reference = tapped.reference if tapped else context.reference.file
    calls = processes.jobs.calls(context.target, job.folder, compiled, context.signature, reference)
    verify_job = replace(
        processes.jobs.verify(
            slug, job.folder, compiled.library.digest, context.optimized, context.reference
        ),
        assumed=compiled.assumed, atomic_sums=compiled.atomic_sums, calls=calls,
    )  # fmt: skip
    if tapped:
        verify_job = replace(
            verify_job, reference=reference, program=tapped.program, outputs=(), evaluation=None,
            rounded=None,
        )  # fmt: skip
    if calls:
        # Without the runner nothing is called, and why there is none is raised here.
        processes.tools(context.target).result()
    return verify(context.processes.runner(context.target), verify_job, slug)


def compare_inner_values(
    context: TargetContext, job: CompileJob, inconclusive: tuple[int, ...]
) -> tuple[tuple[str, ...], VerifyResult | None]:
    """Compare inner values, which a further package of the same program returns.

    Return their names and what came out; None where there are none that say more.
    """
    processes, slug = context.processes, context.target.slug
    tap_job = processes.jobs.tap(job, context.reference.file, inconclusive)
    tapped = tap(processes.runner(), tap_job, slug)
    if not tapped.nodes:
        return (), None
    inner = replace(job, program=tapped.program, folder=tap_job.folder / "package", cache=None)
    compiled = compile_package(processes.compiler(context.target), inner, f"{slug} tapped")
    return tapped.nodes, compare(context, inner, compiled, tapped)


def try_variants(
    context: TargetContext, plain: Variant
) -> tuple[tuple[Variant, ...], tuple[Candidate, ...]]:
    """Return the variants that are accepted, the plain one first, and all that was tried.

    For GPUs there are none yet: Inductor times its kernels itself there. For ARM64 none were tried.
    """
    search = context.processes.jobs.recipe.search
    if not search.seconds or not isinstance(context.target, CpuTarget):
        return (plain,), ()
    deadline = time.monotonic() + search.seconds
    accepted = [plain]
    tried = [plain.candidate]
    libraries = {plain.compiled.library.digest: plain.candidate.name}
    names = list(search.candidates)
    while names:
        name = names.pop(0)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            reason = f"the search's {search.seconds:g} s were over"
            tried.append(Candidate(name, accepted=False, reasons=(reason,)))
            continue
        try:
            variant = attempt(context, name, left_s, libraries)
            tried.append(variant.candidate)
            if variant.verified.accepted:
                accepted.append(variant)
            elif (milder := milder_than(variant.candidate)) and milder not in names:
                names.insert(0, milder)
        except (StepCrashed, BlessingRefused) as error:
            tried.append(
                Candidate(name, accepted=False, reasons=(explain_failure(error, search, deadline),))
            )
    return tuple(accepted), tuple(tried)


def milder_than(refused: Candidate) -> str:
    """Return what is tried after a refused candidate; '' for nothing.

    Where int8 as a whole is too inexact, it may do with less of it. It doesn't where the metric's
    samples are so few that one which changes nothing is refused.
    """
    if refused.metric is not None and refused.metric.has_too_few_samples:
        return ""
    return Search.milder(refused.name)


def explain_failure(error: HandoffError, search: Search, deadline: float) -> str:
    """Return why a variant isn't shipped; one that was ended for the search's time has no fault."""
    if isinstance(error, BudgetSpent) and time.monotonic() >= deadline:
        return f"the search's {search.seconds:g} s were over before it was compiled"
    return str(error)


def attempt(
    context: TargetContext, name: str, left_s: float, libraries: dict[Digest, str]
) -> Variant:
    """Compile and verify one variant, in what is left of the search's time for the compiler.

    Its library joins those in `libraries`, none of which is verified again under another name.
    """
    processes, target = context.processes, context.target
    variation = Search.variation(name)
    optimized = context.optimized
    effects: tuple[PassEffect, ...] = ()
    if variation.passes:
        optimized = optimize(processes.optimizer(), processes.jobs.variant(name, variation.passes))
        effects = target_record.require_effect(optimized, context.optimized)
    job = processes.jobs.candidate(optimized, target, name, variation.options)
    limit_s = min(COMPILE.limit_s, left_s)
    compiled = compile_variant(context, name, job, limit_s)
    target_record.require_new(compiled, libraries)
    libraries[compiled.library.digest] = name
    checked = verify_variant(replace(context, optimized=optimized), name, job, compiled, limit_s)
    return replace(checked, candidate=replace(checked.candidate, effects=effects))


def time_variants(
    context: TargetContext, accepted: tuple[Variant, ...], tried: tuple[Candidate, ...]
) -> tuple[Candidate, ...]:
    """Return what was tried with the times of what was accepted.

    A race that fails leaves the plain one, the first: a variant's crash is no verdict on it.
    """
    job = RaceJob(tuple(variant.folder for variant in accepted), context.reference.file)
    try:
        laps = race(context.processes.runner(context.target), job, context.target.slug).laps
    except (StepCrashed, BlessingRefused) as error:
        reasons = (f"the race of the variants failed: {error}",)
        return tried[0], *(
            replace(one, accepted=False, reasons=reasons) if one.accepted else one
            for one in tried[1:]
        )
    timed = {variant.candidate.name: lap for variant, lap in zip(accepted, laps, strict=True)}
    return tuple(
        target_record.with_lap(candidate, timed.get(candidate.name)) for candidate in tried
    )
