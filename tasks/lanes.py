"""The step processes of one release, started before they are needed.

What handles the delivered graph, what compiles, what runs compiled code and what may see the
stores' credentials are four processes. They are started early, because importing torch, Inductor
or MLflow takes seconds that are otherwise spent in a row.
"""

from __future__ import annotations

import threading
from pathlib import Path

from artifacts.recipe import Recipe
from artifacts.steps import IntakeJob, OptimizeJob, TraceabilityJob
from artifacts.target import Target
from tasks.child import ProcessPlan, StepProcess

INTAKE_LIMIT_S = 600.0
TRACEABILITY_LIMIT_S = 900.0
OPTIMIZE_LIMIT_S = 1800.0


class Lanes:
    """The step processes that work in the folder `workspace`."""

    def __init__(self, workspace: Path, targets: tuple[Target, ...]) -> None:
        """Start the process for the graph and one compiler for each target."""
        self.workspace = workspace
        self._later: dict[str, StepProcess] = {}
        self._lock = threading.Lock()
        self.graph = self._open(ProcessPlan("graph", preload=("tasks.intake",)))
        self._compilers = {
            target.slug: self._open(
                ProcessPlan(
                    f"compile-{target.slug}",
                    preload=("tasks.compile",),
                    environment=self._compiler_environment(target),
                )
            )
            for target in targets
        }

    @property
    def staging(self) -> Path:
        """The private copy of the delivery."""
        return self.workspace / "staging"

    @property
    def program(self) -> Path:
        """The folder of the optimized program."""
        return self.workspace / "program"

    @property
    def reference(self) -> Path:
        """The file of the reference's inputs and outputs."""
        return self.workspace / "reference.pt"

    @property
    def release(self) -> Path:
        """The folder that is registered: the packages and the manifest."""
        return self.workspace / "release"

    def package(self, target: Target) -> Path:
        """Return the folder of the target's packages, inside the release."""
        return self.release / target.slug

    def compiler(self, target: Target) -> StepProcess:
        """Return the process that compiles for `target`."""
        return self._compilers[target.slug]

    def runner(self) -> StepProcess:
        """Return the process that runs models and packages; start it at the first call."""
        return self._started(ProcessPlan("run", preload=("tasks.reference", "tasks.verify")))

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
            "ATEN_CPU_CAPABILITY": target.isa,
            "TORCHINDUCTOR_CACHE_DIR": str(self.workspace / "cache" / target.slug),
            "TMPDIR": str(scratch),
        }


_BEGUN: dict[Path, Lanes] = {}


def begin(workspace: Path, delivery: Path, recipe: Recipe) -> None:
    """Start a release's processes and first steps now, for the flow to find under way.

    An embedded Prefect server takes seconds to start. The steps up to the optimized program depend
    on nothing but the delivery and the recipe, so they run beside it; the flow asks for the same
    jobs and waits for what is already running.
    """
    lanes = Lanes(workspace, recipe.resolved_targets())
    _BEGUN[workspace] = lanes
    lanes.graph.submit(IntakeJob(delivery, lanes.staging), limit_s=INTAKE_LIMIT_S)
    lanes.graph.submit(TraceabilityJob(lanes.staging), limit_s=TRACEABILITY_LIMIT_S)
    job = OptimizeJob(lanes.staging, lanes.program, recipe)
    lanes.graph.submit(job, limit_s=OPTIMIZE_LIMIT_S)


def open_lanes(workspace: Path, recipe: Recipe) -> Lanes:
    """Return the lanes that `begin` started for `workspace`, or new ones."""
    return _BEGUN.pop(workspace, None) or Lanes(workspace, recipe.resolved_targets())


def close_begun() -> None:
    """End the lanes that no flow has taken over."""
    for workspace in list(_BEGUN):
        _BEGUN.pop(workspace).close()
