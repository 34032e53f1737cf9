"""One release: a delivery becomes verified packages in the registry, or a reason why not.

take in -> inspect -> optimize -+-> reference ------------.
                                '-> compile (per target) -+-> verify -> benchmark -> register
"""

from __future__ import annotations

from typing import Any

from prefect import flow

from artifacts.errors import BlessingRefused, StepCrashed
from artifacts.manifest import TargetRecord
from artifacts.record import to_plain
from artifacts.steps import (
    BenchmarkJob,
    CompileResult,
    IntakeJob,
    LookUpJob,
    OptimizeResult,
    ReferenceResult,
    RegisterJob,
    VerifyJob,
)
from artifacts.target import Target
from flows import policies
from flows.parameters import ReleaseParameters
from flows.steps import (
    benchmark,
    compile_package,
    inspect,
    look_up,
    optimize,
    register,
    run_reference,
    take_in,
    verify,
)
from tasks import assemble
from tasks.fingerprint import fingerprint_release
from tasks.lanes import Lanes, open_lanes


@flow(**policies.RELEASE)
def release(parameters: ReleaseParameters) -> dict[str, Any]:
    """Release the delivery that `parameters` name; return the registered version.

    A release that was made before from the same is found again, unless a rebuild is asked for.
    Raises `DeliveryUnreadable`, `DeliveryUnsound`, `BlessingRefused`, `StoreFailed` or
    `RegistryFailed`; nothing is registered then.
    """
    recipe = parameters.parsed_recipe()
    with open_lanes(parameters.workspace, recipe) as lanes:
        taken = take_in(lanes.graph, IntakeJob(parameters.delivery, lanes.staging))
        fingerprint = fingerprint_release(taken.digest, recipe, parameters.compiler)
        earlier = look_up.submit(
            lanes.registrar(),
            LookUpJob(taken.contract.model.name, fingerprint, parameters.stores, parameters.alias),
        )
        judged = inspect(lanes.graph, lanes.traceability_job())
        assemble.refuse_unsound(judged)
        known = earlier.result().known
        if known and not parameters.rebuild:
            return {**to_plain(known), "reused": True}
        optimized = optimize(lanes.graph, lanes.optimize_job())
        # The graph is on disk now, and what read it holds as much memory as a compiler.
        lanes.graph.close()
        records, toolchain = build(lanes, optimized)
        manifest = assemble.assemble(
            lanes.release,
            recipe=recipe,
            taken=taken,
            judged=judged,
            fingerprint=fingerprint,
            optimized=optimized,
            targets=records,
            toolchain=toolchain,
        )
        assemble.require_accepted(manifest)
        job = RegisterJob(manifest, lanes.release, parameters.stores, parameters.alias)
        registered = register(lanes.registrar(), job)
    return {**to_plain(registered), "reused": False}


def build(
    lanes: Lanes, optimized: OptimizeResult
) -> tuple[tuple[TargetRecord, ...], dict[str, str]]:
    """Compile every target, beside the reference; return the targets' records and the toolchain."""
    compiling = [
        (target, compile_package.submit(lanes.compiler(target), job, target.slug))
        for target in lanes.targets
        for job in [lanes.compile_job(optimized, target)]
    ]
    reference = run_reference(lanes.runner(), lanes.reference_job(optimized))
    records: list[TargetRecord] = []
    toolchain: dict[str, str] = {}
    for target, future in compiling:
        try:
            compiled = future.result()
            if not compiled.reused:
                lanes.compiler(target).close()
            record = bless(lanes, target, compiled, reference)
            if compiled.reused and not record.accepted:
                # What came from the cache is wrong here: that is no verdict on this model.
                again = lanes.compile_job(optimized, target, fresh=True)
                compiled = compile_package(lanes.compiler(target), again, target.slug)
                record = bless(lanes, target, compiled, reference)
            records.append(record)
            toolchain = compiled.toolchain
        except (StepCrashed, BlessingRefused) as error:
            # A compiler or a package that fails is this target's answer, not the flow's end.
            records.append(assemble.refuse_target(target.slug, error))
    return tuple(records), toolchain


def bless(
    lanes: Lanes, target: Target, compiled: CompileResult, reference: ReferenceResult
) -> TargetRecord:
    """Verify one target's packages and, when they are accepted, time them."""
    folder = lanes.package(target)
    runner = lanes.runner(target)
    library = next(file.digest for file in compiled.files if file.path.endswith(".so"))
    job = VerifyJob(folder, reference.file, lanes.recipe, library, compiled.assumed)
    verified = verify(runner, job, target.slug)
    timed = None
    if verified.accepted:
        timing = BenchmarkJob(lanes.staging, folder, reference.file)
        timed = benchmark(runner, timing, target.slug)
    return assemble.bless(target.slug, compiled, reference, verified, timed)
