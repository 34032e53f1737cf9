"""The step processes of one release, started before they are needed.

What handles the delivered graph, what compiles, what runs compiled code and what may see the
stores' credentials are four processes. They are started early, because importing torch, Inductor
or MLflow takes seconds that are otherwise spent in a row.
"""

from __future__ import annotations

import threading
from collections.abc import Container
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from handoff.artifacts.isolation import import_folders
from handoff.artifacts.machine.gpu import host_gpu_capabilities
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import (
    CudaTarget,
    Target,
    compile_variables,
    isa_limit_variables,
)
from handoff.artifacts.release.manifest import is_large
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.compile.caching.package_cache import evict_old_packages, package_cache_of
from handoff.tasks.optimize.messages import OptimizeResult
from handoff.tasks.release.jobs import Jobs

# The process that fetches deliveries: it alone sees git's credentials.
FETCHER = ProcessPlan("fetch", preload=("fetch.step",), sees="sources")
# The process that has uv make environments, from the index of uv's settings.
TORCHES = ProcessPlan("torches", sees="sources")


class Processes:
    """The step processes that make a release by `recipe` in the folder `workspace`."""

    def __init__(
        self,
        workspace: Path,
        recipe: Recipe,
        *,
        fresh: bool = False,
        elsewhere: Container[str] = (),
        delivery: Path | None = None,
        reads: tuple[Path, ...] = (),
    ) -> None:
        """Start the process for the graph and, where the delivery is known, one compiler a target.

        With `fresh`, nothing that was compiled before is looked for. The targets whose slugs are
        in `elsewhere` are not built here. Beside the workspace and the delivery, the processes that
        hold the graph, or what was compiled of it, read what `reads` names.
        """
        self.jobs = Jobs(workspace, recipe, fresh)
        self.targets = tuple(t for t in recipe.resolved_targets() if t.slug not in elsewhere)
        self._reads = reads if delivery is None else (delivery.absolute(), *reads)
        self._processes: dict[str, StepProcess] = {}
        self._tools: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()
        # A process is let into what is there when it starts.
        for folder in (self.jobs.shared, self.jobs.programs, *self._torch_folders):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.graph = self._open(ProcessPlan("graph", ("intake", "inspect.step"), recipe.extensions))
        if delivery is not None:
            self.set_delivery(delivery)

    def set_delivery(self, delivery: Path) -> None:
        """Start the compilers, with the cache of the code that is delivered.

        Whoever fetches the delivery into the workspace calls this before any of it is taken in.
        """
        self.jobs = replace(self.jobs, cache=package_cache_of(delivery, self.jobs.packages))
        for target in self.targets:
            self.compiler(target)

    def compiler(self, target: Target) -> StepProcess:
        """Return the process that compiles for `target`; start it at the first call."""
        return self._start_once(
            ProcessPlan(
                f"compile-{target.slug}",
                preload=("compile.step",),
                extensions=self.jobs.recipe.extensions,
                environment=self._compiler_environment(target),
                reads=(self.jobs.shared,),
                writes=(self.jobs.cache,) if self.jobs.cache else (),
            ),
            after=(self.tools(target),),
        )

    def tools(self, target: Target) -> Future[Any]:
        """Return the future of what compilations for `target` share, which no graph has a part in.

        It is made in a process of its own, which ends with it, and which alone leaves the bytecode
        behind that Python makes of what the others import.
        """
        with self._lock:
            if target.slug not in self._tools:
                shared = (self.jobs.shared, self.jobs.programs)
                plan = ProcessPlan(
                    f"tools-{target.slug}", ("compile.caching.make_tools",),
                    environment=self._compiler_environment(target),
                    runs=shared, writes=(*shared, *import_folders()),
                )  # fmt: skip
                process = self._open(plan)
                self._processes[plan.name] = process
                self._tools[target.slug] = process.submit(self.jobs.tools(target))
                process.renew()
            return self._tools[target.slug]

    def runner(self, target: Target | None = None) -> StepProcess:
        """Return the process that runs models and packages; start it at the first call.

        The packages of a target below this machine's level run in one of their own, where torch,
        oneDNN and MKL are held to that level, as they will be on the machines it is meant for.
        Those for another processor are called from this machine's own.
        """
        preload = ("verify.reference", "verify.step")
        extensions = self.jobs.recipe.extensions
        environment = isa_limit_variables(target) if target else {}
        name = f"run-{target.slug}" if target and environment else "run"
        return self._start_once(ProcessPlan(name, preload, extensions, environment))

    def interpreter(self, target: CudaTarget) -> StepProcess:
        """Return the process for the kernels of a GPU that isn't here; start it at the first call.

        Triton decides when it is imported whether it compiles or interprets.
        """
        environment = {**self._compiler_environment(target), "TRITON_INTERPRET": "1"}
        return self._start_once(
            ProcessPlan(
                f"interpret-{target.slug}", extensions=self.jobs.recipe.extensions,
                environment=environment, reads=(self.jobs.shared,),
            )
        )  # fmt: skip

    def torch_installer(self) -> StepProcess:
        """Return the process that gets other versions of torch; start it at the first call."""
        return self._start_once(TORCHES)

    @property
    def _torch_folders(self) -> tuple[Path, ...]:
        return (self.jobs.torches,) if self.jobs.recipe.torch.also else ()

    def optimizer(self) -> StepProcess:
        """Return a process for passes that are tried later; start it at the first call."""
        preload, extensions = ("optimize.step",), self.jobs.recipe.extensions
        return self._start_once(ProcessPlan("optimize", preload, extensions))

    def registrar(self) -> StepProcess:
        """Return the one process that sees the stores' credentials; start it at the first call."""
        return self._start_once(
            ProcessPlan(
                "register",
                ("registry.upload", "registry.look_up"),
                later=("registry.catalogue",),
                sees="stores",
            )
        )

    def signer(self) -> StepProcess:
        """Return the one process that can read the signing key; start it at the first call."""
        return self._start_once(ProcessPlan("sign", preload=("registry.sign",), sees="keys"))

    def close(self) -> None:
        """End all processes."""
        for process in (self.graph, *self._processes.values()):
            process.close()
        evict_old_packages(self.jobs.packages)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, plan: ProcessPlan, after: tuple[Future[Any], ...] = ()) -> StepProcess:
        # What a step unpacks or fetches goes with the build, also when it is killed; no process
        # follows links that another made there.
        scratch = self.jobs.workspace / "scratch" / plan.name
        scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        confined = replace(plan, environment={"TMPDIR": str(scratch), **plan.environment})
        if plan.sees == "bare":
            confined = replace(
                confined,
                reads=(*plan.reads, *self._reads),
                runs=(*plan.runs, self.jobs.programs, *self._torch_folders),
                writes=(*plan.writes, self.jobs.workspace),
            )
        log = self.jobs.workspace / "logs" / f"{plan.name}.log"
        return StepProcess(confined, log, after=after)

    def _start_once(self, plan: ProcessPlan, after: tuple[Future[Any], ...] = ()) -> StepProcess:
        with self._lock:
            if plan.name not in self._processes:
                self._processes[plan.name] = self._open(plan, after)
            return self._processes[plan.name]

    def _compiler_environment(self, target: Target) -> dict[str, str]:
        # A package for several generations of GPUs is made the same way wherever there is one.
        is_for_several = isinstance(target, CudaTarget) and bool(target.further)
        hides_gpus = is_for_several and bool(host_gpu_capabilities())
        return {
            # By the level depends, too, how oneDNN lays out the weights that are packed for it.
            **compile_variables(target),
            # A cache of its own: what another build left there could end up in this one.
            "TORCHINDUCTOR_CACHE_DIR": str(self.jobs.workspace / "cache" / target.slug),
            **({"CUDA_VISIBLE_DEVICES": ""} if hides_gpus else {}),
        }


def fits_side_by_side(optimized: OptimizeResult) -> bool:
    """Return whether the reference may run beside the compilers, by what both hold of the weights.

    A compiler and its linker hold them three times, the reference once and a half.
    """
    return not is_large(optimized.program.stat().st_size)
