"""The activations that our own C++ functions compute, and know by their places here."""

from __future__ import annotations

import torch

_ATEN = torch.ops.aten
# As `activate` in `vectors.h` has them.
FUNCTIONS = (
    _ATEN.relu.default, _ATEN.silu.default, _ATEN.hardswish.default, _ATEN.sigmoid.default,
    _ATEN.hardsigmoid.default, _ATEN.relu6.default,
)  # fmt: skip
# In the place of one, where none follows.
NO_ACTIVATION = -1


def activate(tensor: torch.Tensor, which: int) -> torch.Tensor:
    """Return what the function at that place makes of a tensor; the tensor itself for none."""
    if which == NO_ACTIVATION:
        return tensor
    result: torch.Tensor = FUNCTIONS[which](tensor)
    return result
