"""Judges each element of an output: within what was agreed, within what rounding does, or wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch

from handoff.artifacts.recipe.tolerance import Tolerance
from handoff.tasks.verify.inputs.special import OVERFLOWING, ValueKind
from handoff.tasks.verify.scale import NO_SCALE, Scale

# Below any number that is not zero.
_TINY = 1e-300

# How far rounding alone moves each element, over so many runs.
Moves = Callable[[int], torch.Tensor]


@dataclass(frozen=True)
class ComparedElements:
    """An output of the package, of eager and in float64, element by element: all of one shape.

    The first five are in float64, the masks `special` and `finite` in bool. `size` is what a
    distance is relative to, `finite` are the elements to judge by their distance, and `special`
    those that are not finite in eager, but for those that the package makes as special as float64.
    """

    got: torch.Tensor
    want: torch.Tensor
    exact: torch.Tensor
    distance: torch.Tensor
    size: torch.Tensor
    special: torch.Tensor
    finite: torch.Tensor
    is_float: bool


def align_outputs(
    package: torch.Tensor, eager: torch.Tensor, float64: torch.Tensor, scale: Scale
) -> ComparedElements:
    """Return an output of the package beside eager's and float64's, of the same shape.

    That is any shape; the dtypes are any of real numbers, the package's being eager's.
    """
    special = ~torch.isfinite(eager)
    as_float64 = ~torch.isfinite(float64) & same_elements(
        _to_float64(package), _to_float64(float64)
    )
    got, want, exact = (_to_float64(t) for t in (package, eager, float64))
    distance = (got - want).abs()
    is_float = eager.is_floating_point()
    if not is_float:
        # Those beyond 2^53 can be the same number in float64.
        distance = torch.where(package != eager, distance.clamp_min(1.0), 0.0)
    finite = ~special & ~as_float64
    eps = torch.finfo(eager.dtype).eps if is_float else 0.0
    size = scale.sizes(want, exact, eps)
    return ComparedElements(
        got, want, exact, distance, size, special & ~as_float64, finite, is_float
    )


@dataclass(frozen=True)
class ElementJudgement:
    """What happened to the elements: how many are wrong, how many were let off, and why.

    `room` is what each may be off by beyond what was agreed, in float64; `mismatched` are the
    special ones that are wrong, and `usable` those of which an RMSE says something, both in
    bool. All three have the output's shape.
    """

    room: torch.Tensor
    mismatched: torch.Tensor
    usable: torch.Tensor
    beyond: int
    at_step: int
    incomparable: int


def judge_elements(
    elements: ComparedElements,
    bound: torch.Tensor,
    mismatched: torch.Tensor,
    moved: Moves | None,
    *,
    noise: Scale = NO_SCALE,
    noise_limit: float = 1.0,
) -> ElementJudgement:
    """Judge each element: within its `bound`, within what rounding does beyond it, or wrong.

    `bound` is float64 of the output's shape, as is what `moved` gives. `mismatched`, in bool, are
    those that may not stand where eager's are not finite, unless rounding makes them so. What eager
    itself is off by, by features whose usual `noise` is known, lets elements off before how far
    they move is asked: times how much noisier than eager most of the package's elements are, as far
    as it may be so (`noise_limit`).
    """
    # `not <=` rather than `>`: a NaN in the package is no deviation that passes.
    outside = elements.finite & ~(elements.distance <= bound)
    # What float64 can't hold apart (its own overflow, say) can't judge either of the others.
    usable = elements.finite & torch.isfinite(elements.exact)
    if not bool((outside | mismatched).any()):
        # The most usual output by far: nothing needs room, and nothing is let off.
        return ElementJudgement(torch.zeros_like(bound), mismatched, usable, 0, 0, 0)
    room = _room_for_eager_error(elements, bound, noise, noise_limit)
    # What is let off as noise is noise all the same, and counts in the RMSE.
    noise_alone = outside & (elements.distance <= bound + room)
    undecided = (outside & ~noise_alone) | mismatched
    if moved is not None and bool(undecided.any()):
        moves = _room_for_rounding(moved, undecided, elements, bound)
        mismatched = mismatched & torch.isfinite(moves)
        # An undecided element takes nothing from those that were let off.
        room = torch.where(elements.finite, torch.maximum(room, moves), moves)
    beyond = outside & ~(elements.distance <= bound + room)
    excused = outside & ~beyond
    incomparable = elements.finite & (room > elements.size) & elements.is_float
    return ElementJudgement(
        room,
        mismatched,
        usable & ~(excused & ~noise_alone) & ~incomparable,
        beyond=int(beyond.sum()),
        at_step=int(_find_steps(elements, bound, room, excused & ~incomparable).sum()),
        incomparable=int(incomparable.sum()),
    )


def _find_steps(
    elements: ComparedElements, bound: torch.Tensor, room: torch.Tensor, excused: torch.Tensor
) -> torch.Tensor:
    """Return, in bool, which of the `excused` elements (bool) are at a step of the model."""
    if not elements.is_float:
        return excused
    # Numbers that rounding moves far more than most of their output are at a step, too.
    usual = _median(room / elements.size.clamp_min(_TINY))
    return excused & (elements.distance > GROSS * bound) & (room > GROSS * usual * elements.size)


# How often the model is run while it is moved: as rarely as lets all elements off, the fewest that
# show how many are not comparable, and more often only where few elements ask for it.
_RUNS = (1, 2, 4, 12, 36)
FEWEST_RUNS = 4
_FEW_UNDECIDED = 0.05
# The largest move over so many runs is some two standard deviations of what rounding does; what
# another order of operations does stays within twice that.
ROOM_PER_MOVE = 2.0
# The package's error and eager's are two samples of the same rounding: five standard deviations of
# their difference.
ROOM_PER_ERROR = 7.0
# A difference so many times what was agreed is none of precision any more.
GROSS = 16.0
# A share of the elements of an output, beyond which rounding is no excuse for what they are.
MOST_AT_STEPS = 0.1
MOST_INCOMPARABLE = 0.1


def _room_for_eager_error(
    elements: ComparedElements, bound: torch.Tensor, noise: Scale, noise_limit: float
) -> torch.Tensor:
    """Return what elements may be off by because eager's are: some digits, and never a step.

    Both `bound` and that are float64 of the output's shape.
    """
    most = GROSS * bound
    usable = elements.finite & torch.isfinite(elements.exact)
    eager_error = torch.where(usable, elements.want - elements.exact, 0.0)
    # One at a step says nothing of its neighbours.
    usual_noise = noise.noise_sizes(torch.where(eager_error.abs() <= most, eager_error, 0.0))
    ratio = _noise_ratio(
        torch.where(usable, elements.got - elements.exact, 0.0), eager_error, noise_limit
    )
    return (ROOM_PER_ERROR * ratio * usual_noise).minimum(most)


# So many elements show how noisy an output is.
_SAMPLED = 1 << 20


def _noise_ratio(package: torch.Tensor, eager: torch.Tensor, limit: float) -> float:
    """Return how many times eager's usual error the package's is, from 1 to `limit`.

    Both are errors to float64, of any shape. The ratio is of the medians: a few elements that are
    wrong say nothing of the others.
    """
    if limit <= 1.0:
        return 1.0
    step = max(1, eager.numel() // _SAMPLED)
    noise = _median(eager.abs().flatten()[::step])
    if noise == 0.0:
        return 1.0
    return min(max(1.0, _median(package.abs().flatten()[::step]) / noise), limit)


def _room_for_rounding(
    moved: Moves, undecided: torch.Tensor, elements: ComparedElements, bound: torch.Tensor
) -> torch.Tensor:
    """Return what rounding lets each element be off by, beyond what was agreed.

    That has the output's shape, as have `undecided` (bool) and `bound` (float64). An element that
    moved little by luck is taken for like most of its output. Where nothing moves there is no room.
    More runs, which only add to it, are made while some, but few, of those that are `undecided`
    need more.
    """
    # What is not finite has no size, and is let off where rounding makes it so alone.
    size = elements.size.nan_to_num(0.0, 0.0, 0.0)
    for runs in _RUNS:
        moves = moved(runs)
        if not elements.is_float:
            room = torch.where(moves > 0.0, torch.inf, 0.0)
        else:
            room = room_of_moves(moves, size)
        unexplained = int((undecided & ~(elements.distance <= bound + room)).sum())
        if runs < FEWEST_RUNS and (unexplained or bool((room > elements.size).any())):
            continue
        if not 0 < unexplained <= max(8.0, _FEW_UNDECIDED * undecided.numel()):
            break
    return room


def room_of_moves(moves: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """Return what each floating-point element may be off by where rounding `moves` it so far.

    All are float64 of one shape, which may be any.
    """
    usual = (moves / size.clamp_min(_TINY)).nan_to_num(0.0, 0.0, 0.0)
    return ROOM_PER_MOVE * torch.maximum(moves, _median(usual) * size)


def are_mismatched(
    special: torch.Tensor,
    package: torch.Tensor,
    eager: torch.Tensor,
    float64: torch.Tensor,
    tolerance: Tolerance,
    *,
    values: ValueKind,
) -> torch.Tensor:
    """Return for each element whether it may not stand where eager's is `special`: not finite.

    `special` and the result are bool, of the one shape that the three outputs have.
    """
    if not bool(special.any()):
        return special
    mismatched = special & ~same_elements(package, eager) & ~_is_near(package, float64, tolerance)
    if values in OVERFLOWING:
        # Of float64 nothing shows what is left when a product leaves the range on the way.
        mismatched &= torch.isfinite(package) & (eager.dtype is not torch.float64)
    return mismatched


def _is_near(package: torch.Tensor, float64: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Return for each element whether it is finite and within the bound of a finite float64.

    That is bool, of the one shape that both have.
    """
    got, exact = _to_float64(package), _to_float64(float64)
    finite = torch.isfinite(got) & torch.isfinite(exact)
    size = exact.abs().clamp_min(root_mean_square(exact[torch.isfinite(exact)]))
    return finite & ((got - exact).abs() <= tolerance.atol + tolerance.rtol * size)


def same_elements(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return for each element, in bool, whether both are the same number, or both NaN.

    They may be of any shapes that broadcast, and of any dtypes.
    """
    return (left == right) | (left.isnan() & right.isnan())


def are_identical(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    """Return whether both are the same: dtypes, shapes and every element, NaN beside NaN."""
    return len(left) == len(right) and all(
        a.dtype == b.dtype and a.shape == b.shape and bool(same_elements(a, b).all())
        for a, b in zip(left, right, strict=True)
    )


def _to_float64(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64)


def select(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the values where the mask (bool, of their shape) is true, in a row: `[n]`.

    They keep their dtype, and aren't copied where the mask is true everywhere.
    """
    return values.flatten() if bool(mask.all()) else values[mask]


def finite_in_all(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return, of tensors of one shape, the elements that are finite in all: float64 `[n]` each."""
    usable = reduce(torch.logical_and, map(torch.isfinite, tensors))
    return tuple(select(_to_float64(tensor), usable) for tensor in tensors)


def _median(values: torch.Tensor) -> float:
    return float(values.median()) if values.numel() else 0.0


def root_mean_square(values: torch.Tensor) -> float:
    """Return the root of the mean of the squares of floats of any shape; 0 of nothing."""
    return float(values.square().mean().sqrt()) if values.numel() else 0.0
