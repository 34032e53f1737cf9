"""A small network, delivered and optimized as a release does it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import nn

from handoff.artifacts.delivery.signature import Dimension
from handoff.artifacts.recipe.choices import DEFAULT_PASSES, PassChoice
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.tolerance import Tolerance
from handoff.tasks.optimize import step as optimize
from handoff.tasks.optimize.messages import OptimizeJob, OptimizeResult
from tests.tasks.deliveries import write_delivery

# Parameters of `replace-operator`, which change what the network computes.
RELU_TO_LEAKY = {"old": "relu.default", "new": "leaky_relu.default"}


class Net(nn.Module):
    """Something to drop and something to fold."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.relu(self.norm(self.conv(x)))).mean((2, 3))  # type: ignore[no-any-return]


def run(
    tmp_path: Path,
    *passes: PassChoice,
    module: nn.Module | None = None,
    size: int = 6,
    broken_passes: Literal["refuse", "leave out"] = "refuse",
    tolerance: float = 1e-5,
) -> OptimizeResult:
    """Deliver `module`, else `Net`, with `size` examples, and run the passes on it.

    `tolerance` is the room of float32, relative; a tenth of it absolute.
    """
    torch.manual_seed(0)
    chosen = Net() if module is None else module
    folder = tmp_path / "delivery"
    write_delivery(folder, chosen.eval(), {"x": torch.randn(size, 3, 8, 8)}, batch=Dimension(1, 32))
    bound = Tolerance(atol=tolerance / 10, rtol=tolerance)
    recipe = Recipe(
        passes=passes or DEFAULT_PASSES, broken_passes=broken_passes, tolerance={"float32": bound}
    )
    return optimize.run(OptimizeJob(folder, tmp_path / "program", recipe))
