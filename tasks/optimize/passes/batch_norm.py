"""What the passes that fold batch norms share."""

from __future__ import annotations

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.state import state_value

_ATEN = torch.ops.aten
BATCH_NORM = _ATEN.batch_norm.default
CONVOLUTIONS = {
    _ATEN.conv1d.default, _ATEN.conv2d.default, _ATEN.conv3d.default,
    _ATEN.conv1d.padding, _ATEN.conv2d.padding, _ATEN.conv3d.padding,
}  # fmt: skip


def scale_and_shift(
    program: ExportedProgram, batch_norm: torch.fx.Node
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, per channel and in float64, what an inference batch norm multiplies by and adds."""
    scale, shift, mean, variance = batch_norm.args[1:5]
    epsilon = float(batch_norm.args[7])  # type: ignore[arg-type]
    factor = torch.rsqrt(state_value(program, variance) + epsilon)
    factor = factor * state_value(program, scale, default=1.0)
    return factor, state_value(program, shift) - state_value(program, mean) * factor


def channels_match(between: torch.fx.Node, weight: object, *others: object) -> bool:
    """Return whether the layer's channels are on the batch norm's axis 1, and all is of one dtype.

    They are where what goes `between` the two has the weight's rank: not for a linear layer on
    `[N, L, C]`, nor for a convolution without a batch. A half-precision layer under a float32 batch
    norm can't take its bias from there.
    """
    assert isinstance(weight, torch.fx.Node)
    values = [n.meta["val"] for n in (weight, *others) if isinstance(n, torch.fx.Node)]
    dtypes = {value.dtype for value in values}
    # Folded weights in half precision would be rounded weights: another model.
    is_exact = dtypes in ({torch.float32}, {torch.float64})
    return is_exact and bool(between.meta["val"].dim() == weight.meta["val"].dim())
