"""Give linear layers inputs that lie row by row."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.fx
from torch._prims_common import is_contiguous_or_false
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.base import NodePass
from handoff.tasks.optimize.passes.layout import change_layout

_LAST = {"memory_format": torch.contiguous_format}


class ContiguousLinear(NodePass[ExportedProgram]):
    """Let linear layers multiply one matrix, where torch would multiply one for each row.

    Before: `y = linear(x.transpose(0, 1), W, b)`. After: `y = linear(x.transpose(0, 1)
    .contiguous(), W, b)`, whose rows are those of one matrix. Of an input of three or more axes
    that doesn't lie so, torch makes a batched product, with the weights for each of the batch
    (`at::native::linear`): attention as `torch.nn.MultiheadAttention` writes it takes a third
    longer by that. No value changes.
    """

    name: ClassVar[str] = "contiguous-linear"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def find(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the linear layers whose input lies otherwise."""
        linear = torch.ops.aten.linear.default
        return [
            node for node in program.graph.find_nodes(op="call_function", target=linear)
            if isinstance(source := node.args[0], torch.fx.Node)
            and source.meta["val"].dim() > 2
            and not is_contiguous_or_false(source.meta["val"])
        ]  # fmt: skip

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Copy its input; what computes that usually writes it in that order then."""
        del program
        change_layout(node, node.args[0], _LAST)
