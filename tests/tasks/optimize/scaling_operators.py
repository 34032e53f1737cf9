"""An operator library as a team writes one: `handoff_test::scale` multiplies by a number."""

from __future__ import annotations

import torch


@torch.library.custom_op("handoff_test::scale", mutates_args=())
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    """Return `x * factor`."""
    return x * factor


@scale.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)
