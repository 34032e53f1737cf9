"""Keep the weights of linear layers as 8-bit integers."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.base import WeightPass
from handoff.tasks.optimize.passes.int8_rows import CallBuilder, add_int8_rows
from handoff.tasks.optimize.passes.state import replace_node, state_name

_ATEN = torch.ops.aten


class QuantizeWeights(WeightPass):
    """Keep linear layers' weights as int8 with a scale for each output, at a quarter of the size.

    Before: `y = linear(x, W, b)`. After: `y = linear(x, float32(Q)) * scale + b`, where
    `Q = round(W / scale)` and `scale = max |W| / 127` of each output's weights.

    Conditions: `W` `[out, in]` is a float32 weight. Rounding moves a layer's output by about half a
    percent of its size, so the recipe's tolerance has to have room for it. The package is smaller,
    and not faster: weights are widened in each call.
    """

    name: ClassVar[str] = "quantize-weights"
    rounds: ClassVar[bool] = True

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
        rows, weight = node.args[:2]
        assert isinstance(rows, torch.fx.Node)
        assert isinstance(weight, torch.fx.Node)
        name = state_name(program, weight)
        integers, scales = add_int8_rows(program, name)
        with program.graph.inserting_before(node):
            calls = CallBuilder(program.graph)
            wide = calls.add(_ATEN.to.dtype, integers, torch.float32)
            result = calls.add(
                _ATEN.mul.Tensor, calls.add(_ATEN.linear.default, rows, wide), scales
            )
            if len(node.args) > 2 and node.args[2] is not None:
                result = calls.add(_ATEN.add.Tensor, result, node.args[2])
        result.meta = {**node.meta}
        replace_node(program, node, result)
