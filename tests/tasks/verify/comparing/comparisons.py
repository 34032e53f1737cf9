"""What the tests of one output's comparison share."""

from __future__ import annotations

import torch

from handoff.artifacts.recipe.tolerance import DEFAULT_TOLERANCES, Deviation, Tolerance
from handoff.tasks.verify.compare import compare
from handoff.tasks.verify.elements import Moves

FLOAT32 = DEFAULT_TOLERANCES["float32"]


def judge(
    package: torch.Tensor,
    eager: torch.Tensor,
    float64: torch.Tensor | None = None,
    tolerance: Tolerance = FLOAT32,
) -> Deviation:
    """Compare, with eager itself as the float64 reference unless one is given."""
    exact = eager.double() if float64 is None else float64
    return compare(package, eager, exact, tolerance, output=0, case="test")


def moving(by: torch.Tensor | float) -> Moves:
    """Return what says that rounding moves every element by so much."""
    return lambda _runs: torch.as_tensor(by, dtype=torch.float64)
