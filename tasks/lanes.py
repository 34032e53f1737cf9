"""The step processes of one release, started before they are needed.

What handles the delivered graph, what compiles, what runs compiled code and what may see the
stores' credentials are four processes. They are started early, because importing torch, Inductor
or MLflow takes seconds that are otherwise spent in a row.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from artifacts.localization import LocalizeJob
from artifacts.mechanics import Limits
from artifacts.probes import ProbeJob
from artifacts.recipe import PassChoice, Recipe
from artifacts.signature import ModelSignature
from artifacts.steps import (
    CompileJob,
    CompileResult,
    IntakeJob,
    OptimizeJob,
    OptimizeResult,
    ReferenceJob,
    TapJob,
    TraceabilityJob,
    TraceabilityResult,
    VerifyResult,
)
from artifacts.target import CpuTarget, Target, native_cpu_target
from tasks.child import ProcessPlan, StepProcess

# The C++ program, which serving teams start from, too.
RUNNER_SOURCE = Path(__file__).parent.parent / "infra" / "runner"

# Seconds after which a step's process is ended. A step that needs longer has hung.
INTAKE_LIMIT_S = 600.0
TRACEABILITY_LIMIT_S = 900.0
OPTIMIZE_LIMIT_S = 1800.0
COMPILE_LIMIT_S = 3600.0
REFERENCE_LIMIT_S = 3600.0


class Lanes:
    """The step processes that make a release by `recipe` in the folder `workspace`."""

    def __init__(self, workspace: Path, recipe: Recipe, *, fresh: bool = False) -> None:
        """Start the process for the graph and one compiler for each target.

        With `fresh`, nothing that was compiled before is looked for.
        """
        self.workspace = workspace
        self.recipe = recipe
        self.fresh = fresh
        self.targets = recipe.resolved_targets()
        self._later: dict[str, StepProcess] = {}
        self._lock = threading.Lock()
        self.graph = self._open(
            ProcessPlan("graph", preload=("tasks.intake",), extensions=recipe.extensions)
        )
        self._compilers = {
            target.slug: self._open(
                ProcessPlan(
                    f"compile-{target.slug}",
                    preload=("tasks.compile",),
                    extensions=recipe.extensions,
                    environment=self._compiler_environment(target),
                )
            )
            for target in self.targets
        }

    @property
    def staging(self) -> Path:
        """The private copy of the delivery."""
        return self.workspace / "staging"

    @property
    def release(self) -> Path:
        """The folder that is registered: the packages and the manifest."""
        return self.workspace / "release"

    def package(self, target: Target) -> Path:
        """Return the folder of the target's packages, inside the release."""
        return self.release / target.slug

    def traceability_job(self) -> TraceabilityJob:
        """Return the job that judges the delivery."""
        return TraceabilityJob(self.staging, self.recipe.required_lineage)

    def optimize_job(self) -> OptimizeJob:
        """Return the job that runs the recipe's passes."""
        return OptimizeJob(self.staging, self.workspace / "program", self.recipe)

    def compile_job(
        self, optimized: OptimizeResult, target: Target, *, fresh: bool = False
    ) -> CompileJob:
        """Return the job that compiles for `target`."""
        folder = self.package(target)
        options, cache = self.recipe.options, self.workspace.parent / "packages"
        return CompileJob(optimized.program, target, folder, options, cache, fresh or self.fresh)

    def variant_job(self, passes: tuple[PassChoice, ...]) -> OptimizeJob:
        """Return the job that runs further passes behind the recipe's."""
        folder = self.workspace / "variants" / "+".join(chosen.name for chosen in passes)
        recipe = replace(self.recipe, passes=(*self.recipe.passes, *passes))
        return OptimizeJob(self.staging, folder, recipe)

    def candidate_job(
        self, optimized: OptimizeResult, target: Target, name: str, options: dict[str, object]
    ) -> CompileJob:
        """Return the job that compiles a variant of the package, with further options."""
        folder = self.workspace / "candidates" / target.slug / name
        job = self.compile_job(optimized, target)
        return replace(job, folder=folder, options={**job.options, **options})

    def tap_job(self, job: CompileJob, reference: Path, blind: tuple[int, ...]) -> TapJob:
        """Return the job that taps the program that `job` compiles."""
        folder = self.workspace / "taps" / job.target.slug / job.folder.name
        return TapJob(job.program, reference, blind, folder)

    def localize_job(
        self, optimized: OptimizeResult, target: CpuTarget, verified: VerifyResult
    ) -> LocalizeJob:
        """Return the job that finds out where a refused package goes wrong."""
        # A case that was called in another manner goes by the name of the case that it is of.
        wrong = [d.case.partition(",")[0] for d in verified.deviations if d.reasons]
        return LocalizeJob(
            optimized.program,
            self.staging,
            self.reference_job(optimized).file,
            target,
            self.recipe.options,
            self.recipe,
            folder=self.workspace / "localize" / target.slug,
            reproduction=self.workspace / "reproduction" / target.slug,
            cases=tuple(dict.fromkeys(wrong)),
        )

    def probe_job(
        self, target: Target, compiled: CompileResult, signature: ModelSignature, reference: Path
    ) -> ProbeJob:
        """Return the job that runs the target's packages without Python."""
        builds = self.workspace.parent
        # A GPU's driver reserves far more address space than it uses.
        limits = Limits() if isinstance(target, CpuTarget) else Limits(memory_bytes=0)
        return ProbeJob(
            self.package(target), compiled.files, compiled.fit, signature, reference, self.recipe,
            RUNNER_SOURCE, builds / "programs", self.workspace / "probe" / target.slug, limits,
        )  # fmt: skip

    def reference_job(self, optimized: OptimizeResult) -> ReferenceJob:
        """Return the job that runs the reference."""
        file = self.workspace / "reference.pt"
        return ReferenceJob(self.staging, optimized.reference, self.recipe.verify, file)

    def compiler(self, target: Target) -> StepProcess:
        """Return the process that compiles for `target`."""
        return self._compilers[target.slug]

    def runner(self, target: Target | None = None) -> StepProcess:
        """Return the process that runs models and packages; start it at the first call.

        The packages of a target below this machine's level run in one of their own, where torch,
        oneDNN and MKL are held to that level, as they will be on the machines it is meant for.
        """
        preload = ("tasks.reference", "tasks.verify")
        extensions = self.recipe.extensions
        if target is None or target.capability == native_cpu_target().capability:
            return self._started(ProcessPlan("run", preload, extensions))
        caps = {
            "ATEN_CPU_CAPABILITY": target.capability,
            "ONEDNN_MAX_CPU_ISA": target.capability.upper(),
            "MKL_ENABLE_INSTRUCTIONS": target.capability.upper(),
        }
        return self._started(ProcessPlan(f"run-{target.slug}", preload, extensions, caps))

    def optimizer(self) -> StepProcess:
        """Return a process for passes that are tried later; start it at the first call."""
        preload, extensions = ("tasks.optimize",), self.recipe.extensions
        return self._started(ProcessPlan("optimize", preload, extensions))

    def registrar(self) -> StepProcess:
        """Return the one process that sees the stores' credentials; start it at the first call."""
        return self._started(
            ProcessPlan("register", preload=("tasks.register", "tasks.look_up"), sees="stores")
        )

    def close(self) -> None:
        """End all processes."""
        for process in (self.graph, *self._compilers.values(), *self._later.values()):
            process.close()

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, plan: ProcessPlan) -> StepProcess:
        return StepProcess(plan, self.workspace / "logs" / f"{plan.name}.log")

    def _started(self, plan: ProcessPlan) -> StepProcess:
        with self._lock:
            if plan.name not in self._later:
                self._later[plan.name] = self._open(plan)
            return self._later[plan.name]

    def _compiler_environment(self, target: Target) -> dict[str, str]:
        # A cache of its own: what another build left there could end up in this one. Precompiled
        # headers go by TMPDIR instead, and are shared by the builds below one home.
        scratch = self.workspace.parent / "compiler"
        scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        return {
            "ATEN_CPU_CAPABILITY": target.capability,
            "TORCHINDUCTOR_CACHE_DIR": str(self.workspace / "cache" / target.slug),
            "TMPDIR": str(scratch),
        }


_BEGUN: dict[Path, Lanes] = {}


def begin(workspace: Path, delivery: Path, recipe: Recipe, *, fresh: bool = False) -> None:
    """Start a release's processes and first steps now, for the flow to find under way.

    An embedded Prefect server takes seconds to start. The steps up to the compiled package depend
    on nothing but the delivery and the recipe, so they run beside it; the flow asks for the same
    jobs and waits for what is already running.
    """
    lanes = Lanes(workspace, recipe, fresh=fresh)
    _BEGUN[workspace] = lanes
    graph = lanes.graph
    graph.submit(IntakeJob(delivery, lanes.staging), limit_s=INTAKE_LIMIT_S)
    judged = graph.submit(lanes.traceability_job(), limit_s=TRACEABILITY_LIMIT_S)
    optimized = graph.submit(lanes.optimize_job(), limit_s=OPTIMIZE_LIMIT_S)
    optimized.add_done_callback(lambda done: _go_on(lanes, judged, done))


def _go_on(
    lanes: Lanes, judged: Future[TraceabilityResult], optimized: Future[OptimizeResult]
) -> None:
    """Compile and run the reference, unless an earlier step refused: the flow then says so."""
    if optimized.cancelled() or optimized.exception() or judged.exception():
        return
    if judged.result().verdict == "unsound":
        return
    program = optimized.result()
    for target in lanes.targets:
        compiler = lanes.compiler(target)
        compiler.submit(lanes.compile_job(program, target), limit_s=COMPILE_LIMIT_S)
    lanes.runner().submit(lanes.reference_job(program), limit_s=REFERENCE_LIMIT_S)


def open_lanes(workspace: Path, recipe: Recipe, *, fresh: bool = False) -> Lanes:
    """Return the lanes that `begin` started for `workspace`, or new ones."""
    return _BEGUN.pop(workspace, None) or Lanes(workspace, recipe, fresh=fresh)


def close_begun() -> None:
    """End the lanes that no flow has taken over."""
    for workspace in list(_BEGUN):
        _BEGUN.pop(workspace).close()
