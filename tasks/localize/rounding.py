"""Tells a fault from eager's own rounding, which a tight enough tolerance refuses as well."""

from __future__ import annotations

import torch

from handoff.artifacts.recipe.tolerance import Deviation
from handoff.tasks.verify.compare import is_decision
from handoff.tasks.verify.conditioning import Conditioning
from handoff.tasks.verify.elements import FEWEST_RUNS, room_of_moves
from handoff.tasks.verify.scale import Scale

# Another order of summing gives errors of eager's own size, and about as many large ones: of a
# million normal ones the largest is five times their RMSE, and two of those may meet.
_RMSE_FACTOR = 2.0
_LARGEST = 20.0


def is_eagers_own(
    deviation: Deviation,
    package: torch.Tensor,
    eager: torch.Tensor,
    scale: Scale,
    conditioning: Conditioning | None,
) -> bool:
    """Tell whether an output lies no further from float64, or from eager, than eager's errors.

    Eager is far from float64, too, where it stands on the other side of a step: of a multiple of a
    divisor, say. That excuses no package on inputs which rounding doesn't take across it, so that
    no element may differ by many times what rounding moves it by (`conditioning`) and what its
    dtype can tell apart. A whole number or a truth that was refused never is rounding.
    """
    rounds = (
        deviation.mismatched_non_finite == 0
        and not is_decision(deviation)
        and deviation.rmse_eager > 0.0
        and deviation.rmse_package <= _RMSE_FACTOR * deviation.rmse_eager
        and deviation.max_abs <= _LARGEST * deviation.rmse_eager
    )
    if not rounds or conditioning is None:
        return rounds
    moves = conditioning.moved(deviation.output, FEWEST_RUNS)
    size = scale.sizes(eager.double())
    distance = (package.double() - eager.double()).abs()
    allowed = _LARGEST * (room_of_moves(moves, size) + torch.finfo(eager.dtype).eps * size)
    return not bool((torch.isfinite(eager) & (distance > allowed)).any())
