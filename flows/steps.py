"""The steps as Prefect tasks: each hands its job to a step process and waits for the answer."""

from __future__ import annotations

from typing import cast

from prefect import task

from artifacts.steps import (
    BenchmarkJob,
    BenchmarkResult,
    CompileJob,
    CompileResult,
    IntakeJob,
    IntakeResult,
    OptimizeJob,
    OptimizeResult,
    ReferenceJob,
    ReferenceResult,
    RegisterJob,
    RegisterResult,
    TraceabilityJob,
    TraceabilityResult,
    VerifyJob,
    VerifyResult,
)
from flows import policies
from flows.progress import announced
from tasks.child import StepProcess


@task(**policies.TAKE_IN)
def take_in(process: StepProcess, job: IntakeJob) -> IntakeResult:
    """Copy the delivery into staging and read it without executing it."""
    with announced("take in"):
        return cast(IntakeResult, process.run(job, limit_s=policies.LIMITS_S["intake"]))


@task(**policies.INSPECT)
def inspect(process: StepProcess, job: TraceabilityJob) -> TraceabilityResult:
    """Judge whether the delivered graph computes what was trained."""
    with announced("inspect"):
        return cast(TraceabilityResult, process.run(job, limit_s=policies.LIMITS_S["inspect"]))


@task(**policies.OPTIMIZE)
def optimize(process: StepProcess, job: OptimizeJob) -> OptimizeResult:
    """Run the recipe's passes, each checked, and capture the graph."""
    with announced("optimize"):
        return cast(OptimizeResult, process.run(job, limit_s=policies.LIMITS_S["optimize"]))


@task(**policies.REFERENCE)
def run_reference(process: StepProcess, job: ReferenceJob) -> ReferenceResult:
    """Run the delivered model in eager and in float64 on the input plan."""
    with announced("reference"):
        return cast(ReferenceResult, process.run(job, limit_s=policies.LIMITS_S["reference"]))


@task(**policies.COMPILE)
def compile_package(process: StepProcess, job: CompileJob, slug: str) -> CompileResult:
    """Compile the captured program for one target."""
    with announced(f"compile {slug}"):
        return cast(CompileResult, process.run(job, limit_s=policies.LIMITS_S["compile"]))


@task(**policies.VERIFY)
def verify(process: StepProcess, job: VerifyJob, slug: str) -> VerifyResult:
    """Compare a target's packages with the reference."""
    with announced(f"verify {slug}"):
        return cast(VerifyResult, process.run(job, limit_s=policies.LIMITS_S["verify"]))


@task(**policies.BENCHMARK)
def benchmark(process: StepProcess, job: BenchmarkJob, slug: str) -> BenchmarkResult:
    """Time a target's package against eager."""
    with announced(f"benchmark {slug}"):
        return cast(BenchmarkResult, process.run(job, limit_s=policies.LIMITS_S["benchmark"]))


@task(**policies.REGISTER)
def register(process: StepProcess, job: RegisterJob) -> RegisterResult:
    """Store the packages, register the version, and move the alias last."""
    with announced("register"):
        return cast(RegisterResult, process.run(job, limit_s=policies.LIMITS_S["register"]))
