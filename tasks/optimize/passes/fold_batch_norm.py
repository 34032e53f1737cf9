"""Fold a batch norm into the convolution or linear layer before it."""

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
    change_state,
    replace_node,
    state_name,
    state_value,
)

_PRODUCERS = {*CONVOLUTIONS, torch.ops.aten.linear.default}


class FoldBatchNorm(WeightPass):
    """Scale the weights of a convolution or linear layer by the batch norm that follows it.

    Before: `y = conv(x, W, b)`, `z = (y - mean) / sqrt(var + eps) * gamma + beta`.
    After: `z = conv(x, W * s, (b - mean) * s + beta)` with `s = gamma / sqrt(var + eps)` per output
    channel (the fusion of `torch.nn.utils.fusion.fuse_conv_bn_weights`, computed in float64).

    Conditions: inference statistics; the layer's output goes to the batch norm alone; its weights
    and bias and the batch norm's statistics are used nowhere else, and all are float32 or all are
    float64; the layer's input has a batch axis, and a linear layer's no further one.
    """

    name: ClassVar[str] = "fold-batch-norm"

    def find(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the batch norms that meet the conditions."""
        return [node for node in program.graph.nodes if _is_foldable(program, node)]

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Fold it into the layer before it."""
        producer, mean = node.args[0], node.args[3]
        assert isinstance(producer, torch.fx.Node)
        assert isinstance(mean, torch.fx.Node)
        weight = producer.args[1]
        assert isinstance(weight, torch.fx.Node)
        bias = producer.args[2] if len(producer.args) > 2 else None
        factor, shift = scale_and_shift(program, node)
        matrix = state_value(program, weight)
        column = factor.reshape(-1, *[1] * (matrix.dim() - 1))
        folded_bias = state_value(program, bias) * factor + shift
        change_state(program, weight, matrix * column)
        # The layer may have had no bias; the mean's place in the program's state serves for the new
        # one, because it has the same shape and is no longer needed.
        change_state(program, mean, folded_bias)
        producer.args = (producer.args[0], weight, mean, *producer.args[3:])
        replace_node(program, node, producer)


def _is_foldable(program: ExportedProgram, node: torch.fx.Node) -> bool:
    if node.target is not BATCH_NORM or node.args[5] is not False:
        return False
    producer, scale, shift, mean, variance = node.args[:5]
    if not isinstance(producer, torch.fx.Node) or producer.target not in _PRODUCERS:
        return False
    bias = producer.args[2] if len(producer.args) > 2 else None
    statistics = [n for n in (scale, shift, mean, variance) if n is not None]
    owned = [producer.args[1], *([] if bias is None else [bias]), *statistics]
    return (
        mean is not None
        and variance is not None
        and len(producer.users) == 1
        and all(
            isinstance(n, torch.fx.Node) and len(n.users) == 1 and state_name(program, n)
            for n in owned
        )
        and channels_match(producer, *owned)
    )
