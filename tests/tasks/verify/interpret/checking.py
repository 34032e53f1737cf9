"""A program compiled for a GPU that isn't here, and its kernels' sources run, as a release does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch._inductor.codecache import AotCodeCompiler
from torch.export import ExportedProgram

from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import CudaTarget, parse_target
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.compile.cross.build import inductor_options
from handoff.tasks.compile.cross.retarget import Weights, retarget
from handoff.tasks.compile.cross.simulated_gpu import pretend_gpu
from handoff.tasks.compile.messages import KernelSource
from handoff.tasks.compile.patching import patch_attribute
from handoff.tasks.optimize.programs import save_program
from handoff.tasks.verify.float64 import flatten_tensors, graph_arguments, run_in_float64
from handoff.tasks.verify.interpret.messages import InterpretJob, InterpretResult
from handoff.tasks.verify.reference import ReferenceCase, save_cases

SLUG = "cuda-sm80"


@contextmanager
def interpreting(folder: Path) -> Iterator[StepProcess]:
    """Give the process that kernels are run in, which may write below `folder`."""
    environment = {"TRITON_INTERPRET": "1"}
    plan = ProcessPlan("interpret", environment=environment, reads=(folder,), writes=(folder,))
    with closing(StepProcess(plan, folder / "interpret.log")) as process:
        yield process


def check(
    process: StepProcess,
    program: ExportedProgram,
    inputs: Sequence[tuple[Tensor, ...]],
    folder: Path,
    alter: tuple[KernelSource, ...] | None = None,
) -> tuple[InterpretResult, float]:
    """Return what running the kernels' sources shows at these inputs, and in how many seconds.

    With `alter`, these are said to be what the package's kernels were compiled from.
    """
    target = parse_target(SLUG)
    assert isinstance(target, CudaTarget)
    file, reference = folder / "program.pt2", folder / "reference.pt"
    folder.mkdir(parents=True, exist_ok=True)
    save_program(program, file)
    if alter is None:
        alter = compiled_sources(program)
    save_cases([_case(program, batch) for batch in inputs], reference)
    job = InterpretJob(
        file, target, reference, Recipe(), alter, folder / "kernels", model=file, seconds=180.0
    )
    done = process.submit(job).result()
    return done.result, done.seconds


class _CompiledError(Exception):
    """Ends a compilation once its kernels are there."""


def compiled_sources(program: ExportedProgram, slug: str = SLUG) -> tuple[KernelSource, ...]:
    """Return what the kernels of the program's package are compiled from.

    As in a release (`compile.cross.test_build` compares them), but that the C++ around them is not
    compiled, which takes minutes.
    """

    def stop(*_args: object, **_kwargs: object) -> None:
        raise _CompiledError

    target = parse_target(slug)
    assert isinstance(target, CudaTarget)
    retargeted = retarget(program)
    weights = Weights(program, retargeted)
    with (
        torch.no_grad(), pretend_gpu(target.profile, weights=weights) as kernels,
        patch_attribute(AotCodeCompiler, "compile", staticmethod(stop)),
    ):  # fmt: skip
        options = inductor_options({}, ptx=False)
        try:
            torch._inductor.aoti_compile_and_package(
                retargeted, package_path="none.pt2", inductor_configs=options
            )
        except Exception:
            # Inductor wraps what it meets.
            if not kernels:
                raise
        return tuple(kernel.source for kernel in kernels)


def _case(program: ExportedProgram, inputs: tuple[Tensor, ...]) -> ReferenceCase:
    with torch.no_grad():
        eager = flatten_tensors(program.module()(*inputs))
    exact, _ = run_in_float64(program.graph_module, graph_arguments(program, inputs))
    return ReferenceCase(f"batch={inputs[0].shape[0]} seed=0", inputs, eager, exact)


def another(source: KernelSource) -> KernelSource:
    """Return a kernel of that name whose source is another."""
    digest = str(source.digest)
    return replace(
        source, digest=type(source.digest)(digest[:-1] + ("0" if digest[-1] != "0" else "1"))
    )
