"""The targets of a release: compiled, verified, probed, searched for something faster, timed.

What times nothing is done for all targets side by side, each in processes of its own; what is timed
runs alone, one target after the other:

    side by side  compile, verify, variants      probe
    alone                                   race        measure, benchmark
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import TypeVar

from prefect.futures import PrefectFuture, wait

from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import BlessingRefused, HandoffError, StepCrashed
from handoff.artifacts.files.writing import replace_folder
from handoff.artifacts.recipe.target import CpuTarget, CudaTarget
from handoff.artifacts.release.evidence import Candidate, choose
from handoff.artifacts.release.manifest import TargetRecord, is_large
from handoff.flows.host import is_worker
from handoff.flows.steps import (
    benchmark,
    compile_package,
    interpret,
    localize,
    measure,
    probe,
    run_reference,
)
from handoff.flows.target.other_torches import make_other_torches, verify_with_other_torches
from handoff.flows.target.variants import (
    PLAIN,
    TargetContext,
    Variant,
    time_variants,
    try_variants,
    verify_variant,
)
from handoff.infra.engine.child import StepProcess
from handoff.tasks.compile.arm.emulation import describe_emulation, emulated_target
from handoff.tasks.compile.messages import CompileResult
from handoff.tasks.conformance.messages import KnownWrong
from handoff.tasks.optimize.messages import OptimizeResult
from handoff.tasks.probe.messages import MeasureJob, ProbeJob, ProbeResult
from handoff.tasks.registry import target_record
from handoff.tasks.registry.target_record import BuiltTargets
from handoff.tasks.release.processes import Processes, fits_side_by_side
from handoff.tasks.timing.measurement_cache import (
    CachedMeasurements,
    load_measurements,
    measuring_key,
    record_measurements,
    store_measurements,
)
from handoff.tasks.timing.messages import BenchmarkJob, BenchmarkResult
from handoff.tasks.verify.interpret.messages import InterpretResult

S = TypeVar("S", bound="_TargetState")
T = TypeVar("T", bound="_TargetState")


@dataclass(frozen=True)
class _TargetState:
    """A target under way."""

    context: TargetContext


@dataclass(frozen=True)
class _CompiledTarget(_TargetState):
    """Its package was compiled, or refused by the compiler."""

    outcome: CompileResult | HandoffError


@dataclass(frozen=True)
class _VerifiedTarget(_TargetState):
    """Its numbers are right; `accepted` are the variants to choose from, the plain one first."""

    accepted: tuple[Variant, ...]
    tried: tuple[Candidate, ...]


@dataclass(frozen=True)
class _ChosenTarget(_TargetState):
    """The variant that is shipped lies where the plain one did."""

    winner: Variant
    candidates: tuple[Candidate, ...]

    @property
    def probe_job(self) -> ProbeJob:
        """The job that calls its packages without Python."""
        context = self.context
        return context.processes.jobs.probe(
            context.target, self.winner.compiled, context.signature, context.reference.file
        )


@dataclass(frozen=True)
class _ProbedTarget(_ChosenTarget):
    """It was called and ill-treated; what is left is to time it."""

    probed: ProbeResult
    key: Digest | None
    known: CachedMeasurements | None


def build(
    processes: Processes,
    optimized: OptimizeResult,
    signature: ModelSignature,
    known: PrefectFuture[KnownWrong],
) -> BuiltTargets:
    """Compile every target, beside the reference, and bless each.

    `signature` is what the release will say that the packages take and give, and `known` what they
    are asked for because the toolchain is known to get it wrong.
    """
    torches = make_other_torches(processes)
    compiling = [
        (target, compile_package.submit(processes.compiler(target), job, target.slug))
        for target in processes.targets
        for job in [processes.jobs.compile(optimized, target)]
    ]
    if not compiling:
        # All of them are built elsewhere.
        return BuiltTargets((), {}, "")
    if not fits_side_by_side(optimized):
        wait([future for _, future in compiling])
    faults = known.result().faults
    reference_job = processes.jobs.reference(optimized, faults)
    reference = run_reference(processes.runner(), reference_job)
    # All of them first: what is timed beside a compiler says little.
    compiled = [
        _CompiledTarget(
            TargetContext(processes, target, optimized, reference, signature, torches, faults),
            await_compilation(future),
        )
        for target, future in compiling
    ]
    toolchain: dict[str, str] = {}
    for state in compiled:
        if isinstance(state.outcome, CompileResult):
            toolchain |= state.outcome.toolchain
            _renew_if_large(processes.runner(), state.outcome)
    chosen = _run_one_by_one(_choose, _run_side_by_side(_verify, compiled))
    records = _run_one_by_one(_time, _run_side_by_side(_probe, chosen))
    return BuiltTargets(tuple(records), toolchain, reference.plan, reference.asked)


def await_compilation(compiling: PrefectFuture[CompileResult]) -> CompileResult | HandoffError:
    """Wait for a compilation; return what came out of it, or the refusal."""
    try:
        return compiling.result()
    except HandoffError as error:
        return error


def _run_one_by_one(
    stage: Callable[[S], T | TargetRecord], states: Sequence[S | TargetRecord]
) -> list[T | TargetRecord]:
    return [_run_stage(stage, state) for state in states]


def _run_side_by_side(
    stage: Callable[[S], T | TargetRecord], states: Sequence[S | TargetRecord]
) -> list[T | TargetRecord]:
    """Take all targets through a stage at once; one after the other where a GPU is to be shared."""
    under_way = [state.context.target for state in states if isinstance(state, _TargetState)]
    if len(under_way) < 2 or any(isinstance(target, CudaTarget) for target in under_way):
        return _run_one_by_one(stage, states)
    with ThreadPoolExecutor(len(under_way)) as pool:
        # The flow's run, to which the steps belong, is known by the context.
        futures = [pool.submit(copy_context().run, _run_stage, stage, state) for state in states]
        return [future.result() for future in futures]


def _run_stage(stage: Callable[[S], T | TargetRecord], state: S | TargetRecord) -> T | TargetRecord:
    """Take a target through a stage, unless its record is written already."""
    if isinstance(state, TargetRecord):
        return state
    try:
        return stage(state)
    except (StepCrashed, BlessingRefused) as error:
        # A compiler or a package that fails is this target's answer, not the flow's end; but for
        # one that was killed where another machine can be asked.
        if error.is_machine_fault and is_worker():
            raise
        return target_record.refuse_target(state.context.target.slug, error)


def _verify(state: _CompiledTarget) -> _VerifiedTarget | TargetRecord:
    """Verify a target's packages, and those of the variants that are wanted."""
    context = state.context
    compiler = context.processes.compiler(context.target)
    try:
        if isinstance(state.outcome, HandoffError):
            raise state.outcome
        _renew_if_large(compiler, state.outcome)
        if isinstance(context.target, CudaTarget) and not context.target.is_here:
            return _interpret(context, context.target, state.outcome)
        job = context.processes.jobs.compile(context.optimized, context.target)
        plain = verify_variant(context, PLAIN, job, state.outcome)
        if not plain.verified.accepted:
            return _refuse(context, plain)
        verified = _VerifiedTarget(context, *try_variants(context, plain))
        _renew_if_large(context.processes.runner(context.target), state.outcome)
        return verified
    finally:
        compiler.close()


def _interpret(context: TargetContext, target: CudaTarget, compiled: CompileResult) -> TargetRecord:
    """Return the record of a package whose GPU isn't here, its kernels' sources run if they can be.

    The compiler's process goes before: both hold the program.
    """
    record = target_record.unverified_record(target, compiled)
    processes = context.processes
    job = processes.jobs.interpret(context.optimized, target, compiled, context.reference.file)
    process = processes.interpreter(target)
    try:
        result = interpret(process, job, target.slug)
    except StepCrashed as error:
        # The package is as unverified as it was.
        result = InterpretResult(None, unchecked=str(error))
    finally:
        process.close()
    return target_record.with_source_check(record, result)


def _renew_if_large(process: StepProcess, compiled: CompileResult) -> None:
    """Let a process go that may hold large weights; the next step has another."""
    if is_large(compiled.library.size_bytes):
        process.renew()


def _choose(state: _VerifiedTarget) -> _ChosenTarget:
    """Race the variants, and put the fastest one in the place of the plain one."""
    context, plain = state.context, state.accepted[0]
    if not state.tried:
        return _ChosenTarget(context, plain, ())
    candidates = time_variants(context, state.accepted, state.tried)
    variants = {variant.candidate.name: variant for variant in state.accepted}
    winner = variants[choose(candidates, context.processes.jobs.recipe.search.goal).name]
    if winner is not plain:
        replace_folder(winner.folder, plain.folder)
    return _ChosenTarget(context, winner, candidates)


def _probe(state: _ChosenTarget) -> _ProbedTarget:
    """Have the package called and ill-treated by a program without Python.

    What an earlier package of the same code was found to do is taken over, unless a rebuild is
    asked for.
    """
    context, probe_job = state.context, state.probe_job
    jobs, runner = context.processes.jobs, context.processes.runner(context.target)
    key = measuring_key(probe_job, state.winner.compiled, context.reference, jobs.staging)
    known = None if jobs.fresh else load_measurements(jobs.measured, key)
    job = replace(probe_job, known=known.mechanics) if known else probe_job
    # Without the runner nothing is probed, and why there is none is raised here.
    context.processes.tools(context.target).result()
    probed = probe(runner, job, context.target.slug)
    _renew_if_large(runner, state.winner.compiled)
    return _ProbedTarget(context, state.winner, state.candidates, probed, key, known)


def _time(state: _ProbedTarget) -> TargetRecord:
    """Time the package with and without Python, unless it is known; return the target's record."""
    context, winner, known = state.context, state.winner, state.known
    runner, slug = context.processes.runner(context.target), context.target.slug
    jobs, measured = context.processes.jobs, state.probed
    if emulated_target(slug):
        record = target_record.bless(
            slug, winner.compiled, context.reference, winner.verified, None
        )
        return _with_emulation(target_record.with_mechanics(record, measured))
    if known:
        timed = BenchmarkResult(known.timings)
    else:
        measured = measure(runner, MeasureJob(state.probe_job, state.probed), slug)
        timing = BenchmarkJob(
            jobs.staging, jobs.package(context.target), context.reference.file, slug
        )
        timed = benchmark(runner, timing, slug)
        if measured.accepted:
            store_measurements(
                jobs.measured,
                state.key,
                record_measurements(winner.compiled, measured.mechanics, timed.timings),
            )
    record = target_record.bless(slug, winner.compiled, context.reference, winner.verified, timed)
    record = target_record.with_mechanics(record, measured)
    record = replace(record, taken_over=known.package if known else None)
    record = target_record.with_search(record, state.candidates, winner.candidate.name)
    return verify_with_other_torches(context, winner.compiled, record)


def _with_emulation(record: TargetRecord) -> TargetRecord:
    """Return the record with what has run the package where no processor of its kind has."""
    target = emulated_target(record.slug)
    return replace(record, emulated=describe_emulation(target)) if target else record


def _refuse(context: TargetContext, plain: Variant) -> TargetRecord:
    """Return the record of a refused package, with where it goes wrong if its numbers do."""
    target, verified = context.target, plain.verified
    record = target_record.bless(target.slug, plain.compiled, context.reference, verified, None)
    record = _with_emulation(record)
    is_numeric = any(deviation.reasons for deviation in verified.deviations)
    if not is_numeric or not isinstance(target, CpuTarget):
        return record
    if not context.processes.jobs.recipe.verify.localize_seconds:
        return record
    job = context.processes.jobs.localize(context.optimized, target, verified, context.known)
    try:
        result = localize(context.processes.compiler(target), job, target.slug)
        return target_record.with_cause(record, result)
    except HandoffError as error:
        # The refusal stands, whatever happens to the search for its cause.
        return target_record.with_cause(record, str(error))
