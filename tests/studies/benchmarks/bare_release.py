"""What a person would write without Handoff: the same torch calls on ResNet-18, in one process.

Export, compile, load, compare with eager and float64 on the same inputs, time against eager. No
delivery, no checks of it, no passes, no child processes, no flow, no registry. The compiler gets
the same instruction level and a fresh cache of the same kind as a release gives it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from examples.resnet18 import build
from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.verify.inputs.plan import draw_inputs, plan_cases

_MAX_BATCH = 100  # a release leaves out sizes beyond it, too


def main(folder: Path) -> None:
    """Do it all once, with files below `folder`."""
    from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec

    torch.manual_seed(0)
    module, example = build()[:2]
    module = module.eval()
    signature = ModelSignature(
        (TensorSpec("x", "float32", ("batch", 3, 224, 224)),), (), {"batch": Dimension(1, 1024)}
    )
    recipe = Recipe()
    target = recipe.resolved_targets()[0]
    with torch.no_grad():
        traced = torch.fx.symbolic_trace(module)
        batch = torch.export.Dim("batch", min=1, max=1024)
        program = torch.export.export(traced, example, dynamic_shapes=({0: batch},), strict=False)
        path = torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(folder / "model.pt2"),
            inductor_configs={"cpp.march": target.march},
        )
        package = torch._inductor.aoti_load_package(path)
        specs = [
            c for c in plan_cases(signature, recipe.verify.seeds) if c.sizes["batch"] <= _MAX_BATCH
        ]
        cases = [example, *(draw_inputs(signature, spec) for spec in specs)]
        for inputs in cases:
            eager = module(*inputs)
            module.double()
            exact = module(*[tensor.double() for tensor in inputs])
            module.float()
            distance = (package(*inputs) - eager).abs().max()
            assert distance < 1e-4, distance
            assert (eager - exact).abs().max() < 1e-4
        for inputs in (cases[1], cases[-1]):
            _time(module, package, inputs)


def _time(
    eager: torch.nn.Module, package: Callable[..., object], inputs: tuple[torch.Tensor, ...]
) -> None:
    """Call both in turns for as long as a release does at its smallest and its largest inputs.

    A release times two sizes between, too, a second each; a person would leave these out.
    """
    began = time.perf_counter()
    rounds = 0
    while rounds < 9 or (rounds < 60 and time.perf_counter() - began < 3.0):
        eager(*inputs)
        package(*inputs)
        rounds += 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
