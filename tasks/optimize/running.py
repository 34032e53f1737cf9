"""Runs a program in float64, whichever level it is of, and finds where two of them part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.verify.elements import root_mean_square, same_elements
from handoff.tasks.verify.float64 import (
    Float64Interpreter,
    flat_tensors,
    lifted_inputs,
    run_in_float64,
)

Outputs = tuple[torch.Tensor, ...]
AnyProgram = torch.fx.GraphModule | ExportedProgram


def compute(program: AnyProgram, inputs: Outputs) -> Outputs:
    """Return the program's outputs in float64, flattened; what isn't floating-point as it is.

    `inputs` are of the program's own shapes and dtypes.
    """
    return run_in_float64(*_callable(program, inputs))[0]


def compute_natively(program: AnyProgram, inputs: Outputs) -> Outputs:
    """Return the program's outputs, computed in its own precisions, in float64 as `compute` does.

    `inputs` are of the program's own shapes and dtypes.
    """
    module, arguments = _callable(program, inputs)
    with torch.no_grad():
        result = module(*[tensor.clone() for tensor in arguments])
    return tuple(
        tensor.double() if tensor.is_floating_point() else tensor for tensor in flat_tensors(result)
    )


def _callable(
    program: AnyProgram, inputs: Sequence[torch.Tensor]
) -> tuple[torch.fx.GraphModule, Sequence[torch.Tensor]]:
    if isinstance(program, ExportedProgram):
        return program.graph_module, lifted_inputs(program, inputs)
    return program, inputs


class _Recording(Float64Interpreter):
    """Keeps every node's value by its name."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.values: dict[str, torch.Tensor] = {}

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever the node returns
        value = super().run_node(n)
        if isinstance(value, torch.Tensor) and n.op.startswith("call_"):
            # A copy: a later operator may write to it.
            self.values[n.name] = value.clone()
        return value


def _record(program: AnyProgram, inputs: Outputs) -> dict[str, torch.Tensor]:
    module, arguments = _callable(program, inputs)
    recording = _Recording(module)
    with torch.no_grad():
        recording.run(*[t.clone() for t in arguments])
    return recording.values


def first_difference(before: AnyProgram, after: AnyProgram, inputs: Outputs, recipe: Recipe) -> str:
    """Return the first node that both have and that differs beyond the tolerance, or ''.

    `inputs` are of the programs' own shapes and dtypes. Nodes are matched by name, which a pass
    keeps for what it doesn't make anew.
    """
    was, now = _record(before, inputs), _record(after, inputs)
    for node in after.graph.nodes:
        if node.name not in was or node.name not in now:
            continue
        old, new = was[node.name], now[node.name]
        if old.shape != new.shape or difference(new, old, recipe)[1]:
            return f"{node.name} ({node.target})"
    return ""


def difference(new: torch.Tensor, old: torch.Tensor, recipe: Recipe) -> tuple[float, bool]:
    """Return the largest difference of two float64 results, and whether it leaves the tolerance.

    Both have one shape, which may be any; whole numbers and truths are compared as such. Float64
    stands for every floating-point precision here, so float32's bound is used, as `Tolerance` has
    it: an element near zero was summed from terms of the output's own size.
    """
    kind = "float32" if old.is_floating_point() else str(old.dtype).removeprefix("torch.")
    bound = recipe.tolerance_for(kind)
    wide_new, wide_old = new.double(), old.double()
    # A NaN on one side alone is no small difference; equal infinities are none.
    apart = torch.where(~same_elements(new, old), (wide_new - wide_old).abs(), 0.0)
    apart = apart.nan_to_num(nan=math.inf, posinf=math.inf)
    size = wide_old.abs().clamp_min(root_mean_square(wide_old[torch.isfinite(wide_old)]))
    room = bound.atol + bound.rtol * size.nan_to_num()
    return float(apart.max()) if old.numel() else 0.0, bool((apart > room).any())
