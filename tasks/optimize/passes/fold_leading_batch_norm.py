"""Fold a batch norm into the convolution or linear layer behind it."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.base import WeightPass
from handoff.tasks.optimize.passes.batch_norm import (
    BATCH_NORM,
    CONVOLUTIONS,
    channels_match,
    scale_and_shift,
)
from handoff.tasks.optimize.passes.state import (
    add_buffer,
    change_state,
    replace_node,
    state_name,
    state_value,
)

_LINEAR = torch.ops.aten.linear.default
# Where padding and groups stand among a convolution's arguments.
_PADDING, _GROUPS = 4, 6


class FoldLeadingBatchNorm(WeightPass):
    """Scale the weights of a convolution or linear layer by the batch norm that precedes it.

    Before: `y = x * s + t` per channel (an inference batch norm), `z = conv(y, W, b)`.
    After: `z = conv(x, W * s, b + sum of W * t)`, computed in float64.

    Conditions: inference statistics; the batch norm's output goes to the layer alone, whose weights
    and bias are used nowhere else; all is float32 or all is float64; a convolution pads with
    nothing (the zeros at its edge come after the batch norm), a linear layer's input has two axes.
    """

    name: ClassVar[str] = "fold-leading-batch-norm"

    def find(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the layers behind a batch norm that meet the conditions."""
        return [node for node in program.graph.nodes if _is_foldable(program, node)]

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Fold the batch norm before it into it."""
        batch_norm, weight = node.args[:2]
        bias = node.args[2] if len(node.args) > 2 else None
        assert isinstance(batch_norm, torch.fx.Node)
        assert isinstance(weight, torch.fx.Node)
        scale, shift = scale_and_shift(program, batch_norm)
        matrix = state_value(program, weight)
        # [outputs, inputs of a group, ...]: the channels that each output sees, by its group.
        groups = node.args[_GROUPS] if len(node.args) > _GROUPS else node.kwargs.get("groups", 1)
        groups = groups if isinstance(groups, int) else 1
        outputs, inputs = matrix.shape[:2]
        group = torch.arange(outputs)[:, None] // (outputs // groups)
        channels = group * inputs + torch.arange(inputs)
        shape = (outputs, inputs, *[1] * (matrix.dim() - 2))
        added = (matrix * shift[channels].reshape(shape)).flatten(1).sum(1)
        folded_bias = state_value(program, bias) + added
        change_state(program, weight, matrix * scale[channels].reshape(shape))
        if isinstance(bias, torch.fx.Node):
            change_state(program, bias, folded_bias)
        else:
            dtype = weight.meta["val"].dtype
            bias = add_buffer(program, f"{node.name}_bias", folded_bias.to(dtype))
        node.args = (batch_norm.args[0], weight, bias, *node.args[3:])
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "bias"}
        # Nothing uses it any more: what it would be replaced by is its own input.
        assert isinstance(batch_norm.args[0], torch.fx.Node)
        replace_node(program, batch_norm, batch_norm.args[0])


def _is_foldable(program: ExportedProgram, layer: torch.fx.Node) -> bool:
    if layer.target is not _LINEAR and layer.target not in CONVOLUTIONS:
        return False
    batch_norm, weight = layer.args[:2]
    bias = layer.args[2] if len(layer.args) > 2 else None
    if not isinstance(batch_norm, torch.fx.Node) or batch_norm.target is not BATCH_NORM:
        return False
    if batch_norm.args[5] is not False or len(batch_norm.users) != 1:
        return False
    statistics = [n for n in batch_norm.args[1:5] if n is not None]
    owned = [weight, *([] if bias is None else [bias])]
    return (
        None not in batch_norm.args[3:5]
        and all(isinstance(n, torch.fx.Node) and state_name(program, n) for n in statistics)
        and all(
            isinstance(n, torch.fx.Node) and len(n.users) == 1 and state_name(program, n)
            for n in owned
        )
        and _pads_nothing(layer)
        and channels_match(batch_norm, *owned, *statistics)
    )


def _pads_nothing(layer: torch.fx.Node) -> bool:
    padding = layer.args[_PADDING] if len(layer.args) > _PADDING else layer.kwargs.get("padding", 0)
    if isinstance(padding, (list, tuple)):
        return not any(padding)
    return layer.target is _LINEAR or padding in (0, "valid")
