"""Weights as 8-bit integers, each row on a scale of its own, and calls that widen them again."""

from __future__ import annotations

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.state import add_buffer

_LARGEST = 127


def add_int8_rows(program: ExportedProgram, name: str) -> tuple[torch.fx.Node, torch.fx.Node]:
    """Add the weight `name`, float32 `[rows, ...]`, as int8 of that shape and scales `[rows]`.

    `W` is about `Q * scale` of each row, where `scale = max |W| / 127`: off by half a step at most.
    """
    value = program.state_dict[name].detach()
    largest = value.abs().flatten(1).amax(dim=1)
    # A row of zeros has no scale of its own, and needs none.
    scale = (largest / _LARGEST).clamp(min=torch.finfo(value.dtype).tiny)
    rows = scale.reshape(-1, *[1] * (value.dim() - 1))
    integers = (value / rows).round().clamp(-_LARGEST, _LARGEST).to(torch.int8)
    stem = name.replace(".", "_")
    return (
        add_buffer(program, f"{stem}_int8", integers),
        add_buffer(program, f"{stem}_scale", scale),
    )


class CallBuilder:
    """Adds calls at a graph's place of insertion, with the values that they would have."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        """Add to `graph`."""
        self._graph = graph

    def add(self, operator: torch._ops.OpOverload, *arguments: object) -> torch.fx.Node:
        """Return a call of the operator, with the value that it gives for the arguments'."""
        node: torch.fx.Node = self._graph.call_function(operator, arguments)  # type: ignore[arg-type]
        values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in arguments]
        node.meta["val"] = operator(*values)
        return node
