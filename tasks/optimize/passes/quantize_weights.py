"""Keep the weights of linear layers as 8-bit integers."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.base import WeightPass
from handoff.tasks.optimize.passes.state import add_buffer, replace_node, state_name

_ATEN = torch.ops.aten
_LARGEST = 127


class QuantizeWeights(WeightPass):
    """Keep linear layers' weights as int8 with a scale for each output, at a quarter of the size.

    Before: `y = linear(x, W, b)`. After: `y = linear(x, float32(Q)) * scale + b`, where
    `Q = round(W / scale)` and `scale = max |W| / 127` of each output's weights.

    Conditions: `W` `[out, in]` is a float32 weight. Rounding moves a layer's output by about half a
    percent of its size, so the recipe's tolerance has to have room for it. The package is smaller,
    and not faster: weights are widened in each call.
    """

    name: ClassVar[str] = "quantize-weights"

    def find(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the linear layers with float32 weights."""
        return [
            node for node in program.graph.nodes
            if node.target is _ATEN.linear.default
            and isinstance(weight := node.args[1], torch.fx.Node)
            and (name := state_name(program, weight))
            and program.state_dict[name].dtype is torch.float32
        ]  # fmt: skip

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Replace it."""
        given, weight = node.args[:2]
        assert isinstance(given, torch.fx.Node)
        assert isinstance(weight, torch.fx.Node)
        name = state_name(program, weight)
        value = program.state_dict[name].detach()
        # A row of zeros has no scale of its own, and needs none.
        scale = (value.abs().amax(dim=1) / _LARGEST).clamp(min=torch.finfo(value.dtype).tiny)
        integers = (value / scale[:, None]).round().clamp(-_LARGEST, _LARGEST).to(torch.int8)
        stem = name.replace(".", "_")
        kept = add_buffer(program, f"{stem}_int8", integers)
        scales = add_buffer(program, f"{stem}_scale", scale)
        with program.graph.inserting_before(node):
            calls = _Calls(program.graph)
            wide = calls.add(_ATEN.to.dtype, kept, torch.float32)
            result = calls.add(
                _ATEN.mul.Tensor, calls.add(_ATEN.linear.default, given, wide), scales
            )
            if len(node.args) > 2 and node.args[2] is not None:
                result = calls.add(_ATEN.add.Tensor, result, node.args[2])
        result.meta = {**node.meta}
        replace_node(program, node, result)


class _Calls:
    """Adds calls at a graph's place of insertion, with the values that they would have."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph

    def add(self, operator: torch._ops.OpOverload, *arguments: object) -> torch.fx.Node:
        node = self._graph.call_function(operator, arguments)  # type: ignore[arg-type]
        values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in arguments]
        node.meta["val"] = operator(*values)
        return node
