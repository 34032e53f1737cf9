"""Fold a batch norm into the convolution or linear layer before it."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.fx
from torch.export import ExportedProgram

from tasks.passes.base import Pass, PassBroken
from tasks.passes.state import drop_unused_state, state_name

_ATEN = torch.ops.aten
_CONVOLUTIONS = {
    _ATEN.conv1d.default, _ATEN.conv2d.default, _ATEN.conv3d.default,
    _ATEN.conv1d.padding, _ATEN.conv2d.padding, _ATEN.conv3d.padding,
}  # fmt: skip
_PRODUCERS = {*_CONVOLUTIONS, _ATEN.linear.default}


class FoldBatchNorm(Pass[ExportedProgram]):
    """Scale the weights of a convolution or linear layer by the batch norm that follows it.

    Before: `y = conv(x, W, b)`, `z = (y - mean) / sqrt(var + eps) * gamma + beta`.
    After: `z = conv(x, W * s, (b - mean) * s + beta)` with `s = gamma / sqrt(var + eps)` per output
    channel (the fusion of `torch.nn.utils.fusion.fuse_conv_bn_weights`, computed in float64).

    Conditions: inference statistics; the layer's output goes to the batch norm alone; its weights
    and bias and the batch norm's statistics are used nowhere else and are of one dtype; the layer's
    input has a batch axis, and a linear layer's no further one.
    """

    name: ClassVar[str] = "fold-batch-norm"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def call(self, program: ExportedProgram) -> bool:
        """Fold every pair that meets the conditions."""
        pairs = [node for node in program.graph.nodes if _is_foldable(program, node)]
        for batch_norm in pairs:
            _fold(program, batch_norm)
        if pairs:
            drop_unused_state(program)
        return bool(pairs)

    def ensures(self, program: ExportedProgram) -> None:
        """Raise `PassBroken` if a foldable pair is left."""
        left = [node.name for node in program.graph.nodes if _is_foldable(program, node)]
        if left:
            raise PassBroken(f"{self.name} left {', '.join(left)}")


def _is_foldable(program: ExportedProgram, node: torch.fx.Node) -> bool:
    if node.target is not _ATEN.batch_norm.default or node.args[5] is not False:
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
        and _agree(producer, *owned)
    )


def _agree(producer: torch.fx.Node, weight: object, *others: object) -> bool:
    """Tell whether the layer's channels are on the batch norm's axis 1, and all is of one dtype.

    They are where the output has the weight's rank: not for a linear layer on `[N, L, C]`, nor for
    a convolution without a batch. A half-precision layer under a float32 batch norm can't take its
    bias from there.
    """
    assert isinstance(weight, torch.fx.Node)
    values = [n.meta["val"] for n in (weight, *others) if isinstance(n, torch.fx.Node)]
    same_dtype = len({value.dtype for value in values}) == 1
    return same_dtype and bool(producer.meta["val"].dim() == weight.meta["val"].dim())


def _fold(program: ExportedProgram, batch_norm: torch.fx.Node) -> None:
    producer, scale, shift, mean, variance = batch_norm.args[:5]
    assert isinstance(producer, torch.fx.Node)
    weight = producer.args[1]
    bias = producer.args[2] if len(producer.args) > 2 else None
    epsilon = float(batch_norm.args[7])  # type: ignore[arg-type]

    def value(node: object, default: float = 0.0) -> torch.Tensor:
        if node is None:
            return torch.tensor(default, dtype=torch.float64)
        assert isinstance(node, torch.fx.Node)
        tensor: torch.Tensor = program.state_dict[state_name(program, node)]
        return tensor.detach().double()

    factor = torch.rsqrt(value(variance) + epsilon) * value(scale, default=1.0)
    matrix = value(weight)
    column = factor.reshape(-1, *[1] * (matrix.dim() - 1))
    folded_bias = (value(bias) - value(mean)) * factor + value(shift)
    _replace(program, weight, matrix * column)
    # The layer may have had no bias; the mean's place in the program's state serves for the new
    # one, because it has the same shape and is no longer needed.
    _replace(program, mean, folded_bias)
    producer.args = (producer.args[0], weight, mean, *producer.args[3:])
    batch_norm.replace_all_uses_with(producer)
    program.graph_signature.replace_all_uses(batch_norm.name, producer.name)
    program.graph.erase_node(batch_norm)


def _replace(program: ExportedProgram, node: object, value: torch.Tensor) -> None:
    assert isinstance(node, torch.fx.Node)
    name = state_name(program, node)
    old = program.state_dict[name]
    new = value.to(old.dtype)
    parameter = isinstance(old, torch.nn.Parameter)
    program.state_dict[name] = torch.nn.Parameter(new, requires_grad=False) if parameter else new
