"""Compute pointwise convolutions as linear layers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.convolution_to_linear import is_point, is_unpadded
from handoff.tasks.optimize.passes.following import apply_activations, replace_chain
from handoff.tasks.optimize.passes.layout import LayoutPass
from handoff.tasks.optimize.passes.state import add_call, arguments_of

_ATEN = torch.ops.aten
_CONVOLUTIONS = {_ATEN.conv2d.default, _ATEN.conv2d.padding}
_TO_ROWS, _TO_IMAGE = (0, 2, 3, 1), (0, 3, 1, 2)


class PointwiseToLinear(LayoutPass):
    """Call a linear layer for a convolution by a kernel of one point.

    Before: `y = relu(conv2d(x, W, b))` with `W` of shape (O, C, 1, 1). After: `y = relu(linear(
    x.permute(0, 2, 3, 1).contiguous(), W.flatten(1), b)).permute(0, 3, 1, 2)`, with whatever
    activations follow. oneDNN lays the weights of a linear layer out alike for any batch and number
    of threads, so that no call rearranges them.

    Conditions: two dimensions, one group, no stride, no padding, and nothing is written to after a
    view of it was made. It belongs behind `channels-last`, with which the image's points are rows
    already; without it each layer copies its image.
    """

    name: ClassVar[str] = "pointwise-to-linear"

    def choose(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the convolutions by one point of images that have more."""
        return [
            node for node in program.graph.nodes
            if node.target in _CONVOLUTIONS
            and (arguments := arguments_of(node))["groups"] == 1
            and is_unpadded(arguments["padding"]) and _has_no_stride(arguments["stride"])
            and is_point(arguments["weight"]) and not is_point(arguments["input"])
            # With a batch axis, which torch lets be left out.
            and arguments["input"].meta["val"].dim() == len(_TO_ROWS)
        ]  # fmt: skip

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Replace it, and what follows it alone."""
        arguments = arguments_of(node)
        graph = node.graph
        with graph.inserting_before(node):
            weight = add_call(graph, _ATEN.flatten.using_ints, (arguments["weight"], 1))
            turned = add_call(graph, _ATEN.permute.default, (arguments["input"], list(_TO_ROWS)))
            rows = add_call(graph, _ATEN.contiguous.default, (turned,))
            result = add_call(graph, _ATEN.linear.default, (rows, weight, arguments["bias"]))
        chain, result = apply_activations(node, result)
        with graph.inserting_before(chain[-1]):
            image = add_call(graph, _ATEN.permute.default, (result, list(_TO_IMAGE)))
        replace_chain(program, chain, image)


def _has_no_stride(stride: Any) -> bool:  # noqa: ANN401 - a number or a list of them
    return all(one == 1 for one in (stride if isinstance(stride, (list, tuple)) else [stride]))
