"""Compute convolutions of single points as linear layers."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.base import NodePass
from handoff.tasks.optimize.passes.batch_norm import CONVOLUTIONS
from handoff.tasks.optimize.passes.following import apply_activations, replace_chain
from handoff.tasks.optimize.passes.state import add_call, arguments_of

_ATEN = torch.ops.aten


class ConvolutionToLinear(NodePass[ExportedProgram]):
    """Call a linear layer where a convolution of one point is given an image of one point.

    Before: `y = conv2d(x, W, b)` with `x` of shape (N, C, 1, 1). After: `y = linear(x.flatten(1),
    W.flatten(1), b).unsqueeze(-1).unsqueeze(-1)`. Squeeze-and-excite blocks have two of those each.
    The layout in which oneDNN wants a convolution's weights depends on the batch there, so that
    each call rearranges them, which takes longer than the convolution; a linear layer's stay.
    An activation that follows is computed on the rows.

    Conditions: image and kernel are of one point whatever the input, one group, no padding.
    """

    name: ClassVar[str] = "convolution-to-linear"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def find(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the convolutions of single points."""
        return [
            node for node in program.graph.nodes
            if node.target in CONVOLUTIONS
            and (arguments := arguments_of(node))["groups"] == 1
            and is_unpadded(arguments["padding"])
            and is_point(arguments["input"]) and is_point(arguments["weight"])
            # With a batch axis, which torch lets be left out.
            and arguments["input"].meta["val"].dim() == arguments["weight"].meta["val"].dim()
        ]  # fmt: skip

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Replace it."""
        arguments = arguments_of(node)
        graph = node.graph
        with graph.inserting_before(node):
            rows, weight = (
                add_call(graph, _ATEN.flatten.using_ints, (arguments[name], 1))
                for name in ("input", "weight")
            )
            result = add_call(graph, _ATEN.linear.default, (rows, weight, arguments["bias"]))
        chain, result = apply_activations(node, result)
        with graph.inserting_before(chain[-1]):
            for _ in arguments["weight"].meta["val"].shape[2:]:
                result = add_call(graph, _ATEN.unsqueeze.default, (result, -1))
        replace_chain(program, chain, result)


def is_unpadded(padding: Any) -> bool:  # noqa: ANN401 - a word, a number or a list of them
    """Return whether a convolution by a kernel of one point adds nothing around its image."""
    if isinstance(padding, str):
        # Of a kernel of one point, "same" is none, too.
        return True
    return not any(padding if isinstance(padding, (list, tuple)) else [padding])


def is_point(node: object) -> bool:
    """Return whether an image or a kernel has a single point, whatever the input."""
    if not isinstance(node, torch.fx.Node):
        return False
    # A dynamic size that may be 1 is none.
    return all(isinstance(size, int) and size == 1 for size in node.meta["val"].shape[2:])
