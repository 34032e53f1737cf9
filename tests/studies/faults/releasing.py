"""The steps of a release for a toy model, as far as the verdict, with or without a fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from handoff.artifacts.errors import HandoffError, StepCrashed
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import compile_variables, native_cpu_target
from handoff.artifacts.record import to_plain
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.compile import step as compile_step
from handoff.tasks.compile.messages import CompileJob, CompileResult
from handoff.tasks.compile.patching import patch_environment
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from handoff.tasks.optimize import step as optimize
from handoff.tasks.optimize.messages import OptimizeJob
from handoff.tasks.verify import reference
from handoff.tasks.verify.messages import ReferenceJob, VerifyJob, VerifyResult
from tests.studies.faults.planting import (
    CodeFault,
    Fault,
    GraphFault,
    plant_in_graph,
    planted_in_code,
)
from tests.tasks.deliveries import write_delivery

FIGURES_FILE = "figures.jsonl"
_VERIFY_LIMIT_S = 300.0


@dataclass(frozen=True)
class ToyModel:
    """A model by name, what makes it, and what makes its inputs for a dtype."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[torch.dtype], Mapping[str, torch.Tensor]]


def make_module(model: ToyModel, seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return the model, seeded, for inference, with statistics that matter."""
    torch.manual_seed(seed)
    module = model.build().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            assert part.running_mean is not None
            assert part.running_var is not None
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2.0)
    return module.to(dtype)


@dataclass(frozen=True)
class PreparedModel:
    """A delivery that was taken in, with the program to compile and the reference outputs."""

    folder: Path
    program: Path
    reference: Path
    intended: Path | None = None

    @property
    def staging(self) -> Path:
        """The delivery that was taken in."""
        return self.folder / "staging"


def prepare(
    model: ToyModel,
    folder: Path,
    recipe: Recipe,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> PreparedModel:
    """Deliver the model, take it in, run the recipe's passes and the reference."""
    module = make_module(model, seed, dtype)
    delivery = write_delivery(folder / "delivery", module, model.inputs(dtype))
    staging = folder / "staging"
    take_in(IntakeJob(delivery, staging))
    optimized = optimize.run(OptimizeJob(staging, folder / "program", recipe))
    job = ReferenceJob(staging, optimized.reference, recipe.verify, folder / "reference.pt")
    referred = reference.run(job)
    return PreparedModel(folder, optimized.program, referred.file, optimized.reference)


def compile_prepared(
    prepared: PreparedModel, folder: Path, cache: Path | None, fault: Fault | None = None
) -> CompileResult:
    """Compile into `folder`, with the fault.

    A fault in the graph is compiled like any graph; of one in the code the cache knows nothing.
    """
    target = native_cpu_target()
    program = prepared.program
    if isinstance(fault, GraphFault):
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "planted.pt2"
        plant_in_graph(fault, prepared.program, program)
    in_code = isinstance(fault, CodeFault)
    job = CompileJob(program, target, folder / "package", {}, None if in_code else cache)
    with (
        patch_environment(compile_variables(target)),
        planted_in_code(fault) if isinstance(fault, CodeFault) else nullcontext(),
    ):
        return compile_step.run(job)


class Verifier:
    """The process that verifies, as in a release: a package that crashes it is refused."""

    def __init__(self, log: Path) -> None:
        """Start the process; its output goes to the file `log`, and it reads what lies beside."""
        plan = ProcessPlan(
            "run",
            preload=("verify.reference", "verify.step"),
            reads=(log.parent,),
        )
        self._process = StepProcess(plan, log)

    def verify(
        self,
        prepared: PreparedModel,
        folder: Path,
        compiled: CompileResult,
        recipe: Recipe | None = None,
    ) -> VerifyResult:
        """Return the verdict on the package in `folder` by `recipe`; a crash is a reason."""
        package = folder / "package"
        (library,) = [file.digest for file in compiled.files if file.path.endswith(".so")]
        job = VerifyJob(
            package, prepared.reference, recipe or Recipe(), library, compiled.assumed,
            staging=prepared.staging, program=prepared.intended, atomic_sums=compiled.atomic_sums,
        )  # fmt: skip
        try:
            return self._process.run(job, limit_s=_VERIFY_LIMIT_S)
        except StepCrashed as error:
            return VerifyResult((), (f"verify crashed: {error.got.partition(';')[0]}",))

    def close(self) -> None:
        """End the process."""
        self._process.close()


def refusal_of(error: HandoffError) -> VerifyResult:
    """Return the verdict that a refusal before verifying comes to."""
    return VerifyResult((), (f"refused before: {error}",))


def keep_figures(plain: Mapping[str, object], result: VerifyResult, path: Path) -> None:
    """Add a line to the file `path`: what was measured of every output of every case."""
    path.parent.mkdir(parents=True, exist_ok=True)
    measured = to_plain(result.deviations)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({**plain, "reasons": result.reasons, "measured": measured}) + "\n")
