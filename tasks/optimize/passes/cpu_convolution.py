"""Compute pointwise and depthwise convolutions on the CPU by functions of our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.kernels.depthwise import LEAST_CHANNELS
from handoff.tasks.optimize.kernels.pointwise import pack
from handoff.tasks.optimize.passes.convolution_to_linear import is_point, is_unpadded
from handoff.tasks.optimize.passes.following import follow, replace_chain
from handoff.tasks.optimize.passes.layout import LayoutPass
from handoff.tasks.optimize.passes.purity import is_written_behind, last_writes
from handoff.tasks.optimize.passes.state import (
    RepackedWeights,
    add_call,
    arguments_of,
    drop_unused_state,
    is_constant,
    state_name,
)

_ATEN = torch.ops.aten
_POINTWISE = torch.ops.handoff.pointwise.default
_DEPTHWISE = torch.ops.handoff.depthwise.default
_CONVOLUTIONS = {_ATEN.conv2d.default, _ATEN.conv2d.padding}
_AXES = 2
# A batch's, the channels', and those of an image.
_RANK = 4


class CpuConvolution(LayoutPass):
    """Call functions of our own for convolutions by one point, and for those of single channels.

    Before: `y = relu(conv2d(x, W, b) + r)`. After: `y = handoff.pointwise(x, W', b, r, ...)`, and
    `handoff.depthwise` where each channel has a kernel of its own. On the CPU these become C++
    functions inside the package, with what follows the convolution (a sum, an activation) in them:
    of networks for small devices, which have many such layers, calling oneDNN takes a good part of
    the time. On CUDA they are the same operators as before.

    Conditions: float32, two dimensions, weights of the program's own, a convolution by one point
    without stride and padding, or one of 16 channels at least each with its own kernel, and nothing
    is written to after a view of it was made. It belongs in front of `channels-last`, since the
    functions give their results so. Whether it is faster depends on model and machine, so let a
    search decide.
    """

    name: ClassVar[str] = "cpu-convolution"

    def choose(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the convolutions that the functions can compute."""
        writes = last_writes(program.graph)
        return [
            node for node in program.graph.nodes
            if node.target in _CONVOLUTIONS and _is_supported(program, node, writes)
        ]  # fmt: skip

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Replace one, and what follows it alone."""
        arguments = arguments_of(node)
        is_pointwise = arguments["groups"] == 1
        chain, added, activation = follow(node, last_writes(program.graph), sums=is_pointwise)
        image, weight, bias = (arguments[name] for name in ("input", "weight", "bias"))
        if is_pointwise:
            packed = self._weights.add(weight, "rows", lambda one: pack(one.flatten(1)))
            channels = weight.meta["val"].shape[0]
            call = (_POINTWISE, (image, packed, bias, added, channels, activation))
        else:
            taps = self._weights.add(weight, "taps", lambda one: one.squeeze(1).permute(1, 2, 0))
            sides = [_pair(arguments[name]) for name in ("stride", "padding", "dilation")]
            numbers = [number for side in sides for number in side]
            call = (_DEPTHWISE, (image, taps, bias, *numbers, activation))
        with node.graph.inserting_before(chain[-1]):
            result = add_call(node.graph, *call)
        replace_chain(program, chain, result)

    def call(self, program: ExportedProgram) -> bool:
        """Replace them all; layers that share weights go on sharing them."""
        self._weights = RepackedWeights(program)
        return super().call(program)

    def clean_up(self, program: ExportedProgram) -> None:
        """Drop the weights as the layers had them."""
        super().clean_up(program)
        drop_unused_state(program)


def _is_supported(
    program: ExportedProgram, node: torch.fx.Node, writes: dict[torch.fx.Node, torch.fx.Node]
) -> bool:
    arguments = arguments_of(node)
    image, weight, bias = (arguments[name] for name in ("input", "weight", "bias"))
    value, kernel, groups = image.meta["val"], weight.meta["val"], arguments["groups"]
    tensors = [one for one in (image, weight, bias) if one is not None]
    return (
        value.dim() == _RANK and not is_point(image)
        and all(one.meta["val"].dtype is torch.float32 for one in tensors)
        and bool(state_name(program, weight)) and weight not in writes
        and (bias is None or is_constant(program, bias, writes))
        # What it is given isn't written to behind it, where the function may come to stand.
        and not is_written_behind(image, writes)
        and (_is_pointwise(arguments) if groups == 1 else _is_depthwise(arguments, value, kernel))
    )  # fmt: skip


def _is_pointwise(arguments: dict[str, Any]) -> bool:
    return (
        is_point(arguments["weight"]) and is_unpadded(arguments["padding"])
        and _pair(arguments["stride"]) == [1, 1]
    )  # fmt: skip


def _is_depthwise(arguments: dict[str, Any], image: torch.Tensor, kernel: torch.Tensor) -> bool:
    channels = arguments["groups"]
    return (
        channels >= LEAST_CHANNELS and kernel.shape[0] == image.shape[1] == channels
        and not isinstance(arguments["padding"], str)
    )  # fmt: skip


def _pair(value: int | Sequence[int]) -> list[int]:
    """Return a number for each axis of an image; one is that of both."""
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * (_AXES // len(numbers))
