"""Judges what a package gave by the rule of the release, and how far beyond it that lies.

A fault is distinguished from eager's own rounding, which a tight enough tolerance refuses as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.tolerance import Deviation
from handoff.tasks.verify.compare import compare, is_decision, typical_error
from handoff.tasks.verify.conditioning import Conditioning
from handoff.tasks.verify.elements import FEWEST_RUNS, room_of_moves
from handoff.tasks.verify.inputs.special import ValueKind
from handoff.tasks.verify.loading import Tensors
from handoff.tasks.verify.reference import ReferenceCase
from handoff.tasks.verify.scale import Scale, find_scale

# An honest operator in float32 does not come near a hundred times eager's error.
_SURELY_WRONG = 100.0
# What explains an output's error has about its size, in units of eager's own: whatever makes one
# larger or smaller on the way does that to the other.
_EXPLAINS = 0.1

# Another order of summing gives errors of eager's own size, and about as many large ones: of a
# million normal ones the largest is five times their RMSE, and two of those may meet.
_RMSE_FACTOR = 2.0
_LARGEST = 20.0


@dataclass(frozen=True)
class JudgedOutput:
    """One output, and its error as a multiple of eager's (or of the floor, if that is larger).

    `excess` is infinite where that says nothing of what is wrong. `is_eager_rounding` is an output
    that was refused for no more than eager's own rounding.
    """

    deviation: Deviation
    excess: float
    is_eager_rounding: bool = False

    @property
    def is_wrong(self) -> bool:
        """Return whether a rule was broken."""
        return not self.deviation.accepted

    @property
    def relative(self) -> float:
        """The package's RMSE to float64, relative to the output's own RMS."""
        return self._relative(self.deviation.rmse_package)

    @property
    def relative_eager(self) -> float:
        """Eager's RMSE to float64, relative to the output's own RMS."""
        return self._relative(self.deviation.rmse_eager)

    def _relative(self, rmse: float) -> float:
        return rmse / self.deviation.rms if self.deviation.rms > 0.0 else rmse


def judge(
    case: str,
    outputs: Tensors,
    eager: Tensors,
    float64: Tensors,
    recipe: Recipe,
    *,
    values: ValueKind = "drawn",
    conditioning: Conditioning | None = None,
) -> list[JudgedOutput]:
    """Return each output compared as `tasks.verify` does, but for the typical error of this case.

    All outputs are flattened; `float64` has the shapes of `eager`, which may be any. `conditioning`
    measures how far rounding alone moves the outputs; without it they don't move. Raises
    `ValueError` for another number of outputs.
    """
    found = []
    for index, (got, want, exact) in enumerate(zip(outputs, eager, float64, strict=True)):
        tolerance = recipe.tolerance_for(str(want.dtype).removeprefix("torch."))
        typical = typical_error([(want, exact)])
        moved = partial(conditioning.moved, index) if conditioning else None
        scale = find_scale([want])
        deviation = compare(
            got, want, exact, tolerance, output=index, case=case, typical=typical, values=values,
            moved=moved, scale=scale,
        )  # fmt: skip
        is_rounding = bool(deviation.reasons) and is_eager_rounding(
            deviation, got, want, scale, conditioning
        )
        floor = max(deviation.rmse_eager, tolerance.rmse_floor * deviation.rms)
        excess = _excess(deviation, floor)
        if deviation.reasons and not is_rounding and excess < 1.0:
            # Eager is as far from float64, by steps at which the package is wrong all the same.
            excess = math.inf
        found.append(JudgedOutput(deviation, excess, is_rounding))
    return found


def judge_case(
    case: ReferenceCase, outputs: Tensors, recipe: Recipe, model: Callable[..., Any]
) -> list[JudgedOutput]:
    """Return each output of a case of the reference, which `model` computes, compared.

    `outputs` are flattened, as `case.eager` are; another shape or dtype than theirs is wrong.
    """
    conditioning = Conditioning(model, case.inputs, case.eager, case.name)
    return judge(
        case.name, outputs, case.eager, case.float64, recipe, values=case.values,
        conditioning=conditioning,
    )  # fmt: skip


def _excess(deviation: Deviation, floor: float) -> float:
    if deviation.mismatched_non_finite or not math.isfinite(deviation.rmse_package):
        return math.inf
    if floor == 0.0:
        return math.inf if deviation.rmse_package > 0.0 else 0.0
    return deviation.rmse_package / floor


def worst(judged: Sequence[JudgedOutput]) -> JudgedOutput | None:
    """Return the wrong output that lies furthest beyond eager, or None where all are right."""
    return max((j for j in judged if j.is_wrong), key=lambda j: j.excess, default=None)


def worst_fault(judged: Sequence[JudgedOutput]) -> JudgedOutput | None:
    """Return the wrong output that is furthest off by more than eager's rounding, or None."""
    return worst([one for one in judged if not one.is_eager_rounding])


def threshold(final: JudgedOutput) -> float:
    """Return the excess from which on a value on the way may be what made `final` wrong."""
    return max(1.0, min(_EXPLAINS * final.excess, _SURELY_WRONG))


def is_eager_rounding(
    deviation: Deviation,
    package: torch.Tensor,
    eager: torch.Tensor,
    scale: Scale,
    conditioning: Conditioning | None,
) -> bool:
    """Return whether an output lies no further from float64, or from eager, than eager's errors.

    Both outputs have one shape, which may be any. Eager is far from float64, too, where it stands
    on the other side of a step: of a multiple of a divisor, say. That excuses no package on inputs
    which rounding doesn't take across it, so that no element may differ by many times what rounding
    moves it by (`conditioning`) and what its dtype can tell apart. A whole number or a truth that
    was refused never is rounding.
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
