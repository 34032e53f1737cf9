"""One target of a release: compiled, verified, searched for something faster, timed."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from prefect.futures import PrefectFuture

from artifacts.errors import BlessingRefused, HandoffError, StepCrashed
from artifacts.evidence import Candidate, PassEffect, choose
from artifacts.manifest import TargetRecord
from artifacts.recipe import Search
from artifacts.signature import ModelSignature
from artifacts.steps import (
    BenchmarkJob,
    CompileJob,
    CompileResult,
    OptimizeResult,
    RaceJob,
    ReferenceResult,
    VerifyJob,
    VerifyResult,
)
from artifacts.target import CudaTarget, Target
from artifacts.tolerance import largest_difference
from flows import policies
from flows.steps import (
    benchmark,
    compile_package,
    localize,
    optimize,
    probe,
    race,
    run_reference,
    tap,
    verify,
)
from tasks import assemble
from tasks.assemble import BuiltTargets
from tasks.lanes import Lanes


@dataclass(frozen=True)
class Work:
    """What the work on one target goes by."""

    lanes: Lanes
    target: Target
    optimized: OptimizeResult
    reference: ReferenceResult
    signature: ModelSignature


@dataclass(frozen=True)
class Variant:
    """A package that was compiled and verified, and what is to be told of it."""

    folder: Path
    compiled: CompileResult
    verified: VerifyResult
    told: Candidate


def build(lanes: Lanes, optimized: OptimizeResult, signature: ModelSignature) -> BuiltTargets:
    """Compile every target, beside the reference, and bless each.

    `signature` is what the release will say that the packages take and give.
    """
    compiling = [
        (target, compile_package.submit(lanes.compiler(target), job, target.slug))
        for target in lanes.targets
        for job in [lanes.jobs.compile(optimized, target)]
    ]
    reference = run_reference(lanes.runner(), lanes.jobs.reference(optimized))
    # All of them first: what is timed beside a compiler says little.
    compiled = [(target, settle(future)) for target, future in compiling]
    records: list[TargetRecord] = []
    toolchain: dict[str, str] = {}
    for target, outcome in compiled:
        try:
            if isinstance(outcome, HandoffError):
                raise outcome
            toolchain |= outcome.toolchain
            records.append(bless(Work(lanes, target, optimized, reference, signature), outcome))
        except (StepCrashed, BlessingRefused) as error:
            # A compiler or a package that fails is this target's answer, not the flow's end.
            records.append(assemble.refuse_target(target.slug, error))
        finally:
            lanes.compiler(target).close()
    return BuiltTargets(tuple(records), toolchain, reference.plan)


def settle(compiling: PrefectFuture[CompileResult]) -> CompileResult | HandoffError:
    """Wait for a compilation; return what came out of it, or the refusal."""
    try:
        return compiling.result()
    except HandoffError as error:
        return error


def bless(work: Work, compiled: CompileResult) -> TargetRecord:
    """Verify one target's packages, look for faster ones, and time what is shipped."""
    lanes, target = work.lanes, work.target
    if isinstance(target, CudaTarget) and not target.is_here:
        return assemble.built_only(target, compiled)
    job = lanes.jobs.compile(work.optimized, target)
    plain = check(work, "plain", job, compiled)
    if compiled.reused and not plain.verified.accepted:
        # What came from the cache is wrong here: that is no verdict on this model.
        job = lanes.jobs.compile(work.optimized, target, fresh=True)
        plain = check(work, "plain", job, compile_package(lanes.compiler(target), job, target.slug))
    if not plain.verified.accepted:
        return refuse(work, target, plain)
    winner, candidates = search(work, plain)
    if winner is not plain:
        assemble.adopt(winner.folder, plain.folder)
    probing = lanes.jobs.probe(target, winner.compiled, work.signature, work.reference.file)
    probed = probe(lanes.runner(target), probing, target.slug)
    timing = BenchmarkJob(lanes.jobs.staging, plain.folder, work.reference.file, target.slug)
    timed = benchmark(lanes.runner(target), timing, target.slug)
    record = assemble.bless(target.slug, winner.compiled, work.reference, winner.verified, timed)
    record = assemble.with_mechanics(record, probed)
    return assemble.with_search(record, candidates, winner.told.name)


def refuse(work: Work, target: Target, plain: Variant) -> TargetRecord:
    """Return the record of a refused package, with where it goes wrong if its numbers do."""
    lanes, verified = work.lanes, plain.verified
    record = assemble.bless(target.slug, plain.compiled, work.reference, verified, None)
    is_numeric = any(deviation.reasons for deviation in verified.deviations)
    if not is_numeric or isinstance(target, CudaTarget):
        return record
    job = lanes.jobs.localize(work.optimized, target, verified)
    try:
        return assemble.with_cause(record, localize(lanes.compiler(target), job, target.slug))
    except HandoffError as error:
        # The refusal stands, whatever becomes of the search for its cause.
        return assemble.with_cause(record, str(error))


def check(work: Work, name: str, job: CompileJob, compiled: CompileResult) -> Variant:
    """Verify a variant; return it, accepted or not."""
    names = tuple(spec.name for spec in work.optimized.outputs)
    verified = compare(work, job, compiled, work.reference.file, names)
    if verified.accepted and verified.blind:
        verified = assemble.with_inside(verified, *look_inside(work, job, verified.blind))
    told = Candidate(
        name=name,
        accepted=verified.accepted,
        reasons=verified.reasons,
        compile_s=compiled.compile_s,
        size_bytes=compiled.library.size_bytes,
        max_abs=largest_difference(verified.deviations) or 0.0,
    )
    return Variant(job.folder, compiled, verified, told)


def compare(
    work: Work, job: CompileJob, compiled: CompileResult, reference: Path, names: tuple[str, ...]
) -> VerifyResult:
    """Compare the packages that `job` has made with a reference."""
    recipe, slug = work.lanes.jobs.recipe, work.target.slug
    verifying = VerifyJob(
        job.folder, reference, recipe, compiled.library.digest, compiled.assumed, names, slug
    )
    return verify(work.lanes.runner(work.target), verifying, slug)


def look_inside(
    work: Work, job: CompileJob, blind: tuple[int, ...]
) -> tuple[tuple[str, ...], VerifyResult | None]:
    """Compare inner values, which a further package of the same program returns.

    Return their names and what came out; None where there are none that say more.
    """
    lanes, slug = work.lanes, work.target.slug
    tapping = lanes.jobs.tap(job, work.reference.file, blind)
    tapped = tap(lanes.runner(), tapping, slug)
    if not tapped.nodes:
        return (), None
    inner = replace(job, program=tapped.program, folder=tapping.folder / "package", cache=None)
    compiled = compile_package(lanes.compiler(work.target), inner, f"{slug} tapped")
    return tapped.nodes, compare(work, inner, compiled, tapped.reference, ())


def search(work: Work, plain: Variant) -> tuple[Variant, tuple[Candidate, ...]]:
    """Return the fastest variant that is accepted, and what was tried; the plain one without.

    For GPUs there is none yet: Inductor times its kernels itself there.
    """
    wanted = work.lanes.jobs.recipe.search
    if not wanted.seconds or isinstance(work.target, CudaTarget):
        return plain, ()
    deadline = time.monotonic() + wanted.seconds
    found: dict[str, Variant] = {"plain": plain}
    tried = [plain.told]
    for name in wanted.candidates:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            reason = f"the search's {wanted.seconds:g} s were over"
            tried.append(Candidate(name, accepted=False, reasons=(reason,)))
            continue
        try:
            found[name] = attempt(work, name, left_s)
            tried.append(found[name].told)
        except (StepCrashed, BlessingRefused) as error:
            tried.append(Candidate(name, accepted=False, reasons=(str(error),)))
    candidates = rate(work, [v for v in found.values() if v.verified.accepted], tried)
    return found[choose(candidates).name], candidates


def attempt(work: Work, name: str, left_s: float) -> Variant:
    """Compile and verify one variant, in what is left of the search's time for the compiler."""
    lanes, target = work.lanes, work.target
    variation = Search.variation(name)
    optimized = work.optimized
    effects: tuple[PassEffect, ...] = ()
    if variation.passes:
        optimized = optimize(lanes.optimizer(), lanes.jobs.variant(variation.passes))
        effects = assemble.require_effect(optimized, work.optimized)
    job = lanes.jobs.candidate(optimized, target, name, variation.options)
    limit_s = min(policies.LIMITS_S["compile"], left_s)
    compiled = compile_package(lanes.compiler(target), job, f"{target.slug} {name}", limit_s)
    checked = check(work, name, job, compiled)
    return replace(checked, told=replace(checked.told, effects=effects))


def rate(work: Work, accepted: list[Variant], tried: list[Candidate]) -> tuple[Candidate, ...]:
    """Return what was tried with the times of what was accepted."""
    job = RaceJob(tuple(variant.folder for variant in accepted), work.reference.file)
    laps = race(work.lanes.runner(work.target), job, work.target.slug).laps
    timed = {variant.told.name: lap for variant, lap in zip(accepted, laps, strict=True)}
    return tuple(assemble.with_lap(candidate, timed.get(candidate.name)) for candidate in tried)
