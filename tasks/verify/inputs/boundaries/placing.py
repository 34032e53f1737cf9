"""Finds the values of an input that lead an operator to where it decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from handoff.artifacts.delivery.signature import TensorSpec
from handoff.tasks.verify.inputs.boundaries.targets import Target
from handoff.tasks.verify.inputs.boundaries.tracing import DerivedTensor

_HALVINGS = 60
# How far from what was drawn they are looked for first, in shares of the range, or of what is drawn
# where none is declared.
_NEAR = (2.0**-8, 2.0**-4)
# Where nothing is declared, inputs are looked for up to this magnitude.
_FURTHEST = 2.0**40


def place_targets(
    spec: TensorSpec, drawn: torch.Tensor, targets: list[Target]
) -> torch.Tensor | None:
    """Return `drawn` with values in it that lead to the targets, in turns; None if none do.

    It keeps its shape, which may be any, and its dtype. Every second element stays as it was drawn.
    Half of the others lie at the target, the rest one unit in the last place below it or above.
    Values outside of the declared range stay out.
    """
    flat, changed = drawn.flatten().clone(), False
    elements = torch.arange(flat.numel())
    for turn, target in enumerate(targets):
        chosen = (elements % 2 == 0) & ((elements // 2) % len(targets) == turn)
        solutions, reached = _solve(spec, drawn, target.use.operand, target.values)
        side = (elements // (2 * len(targets))) % 4
        solutions = torch.where(side == 1, _next_number(solutions, -1), solutions)
        solutions = torch.where(side == 3, _next_number(solutions, 1), solutions)
        allowed = chosen & reached & _in_range(spec, solutions)
        flat = torch.where(allowed, solutions, flat)
        changed = changed or bool(allowed.any())
    return flat.reshape(drawn.shape) if changed else None


def fill_input(
    spec: TensorSpec, drawn: torch.Tensor, operand: DerivedTensor, values: torch.Tensor
) -> torch.Tensor | None:
    """Return `drawn` with every value in it that leads to `values`; None if none does.

    `values` has a value for each element of `operand`, whatever the shape; `drawn` keeps its shape
    and dtype. Of an input without a declared range they may be infinite, or not a number.
    """
    solutions, reached = _solve(spec, drawn, operand, values)
    allowed = reached & (
        _in_range(spec, solutions) | (spec.is_unlimited & ~torch.isfinite(solutions))
    )
    return (
        torch.where(allowed, solutions, drawn.flatten()).reshape(drawn.shape)
        if allowed.any()
        else None
    )


def _solve(
    spec: TensorSpec, drawn: torch.Tensor, operand: DerivedTensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values for all elements of an input, and which of them lead to their target.

    Both are flattened: `[n]` of `drawn`'s dtype, and `[n]` of bool. `targets` has a value for each
    element of the operand. Where the operand is the input itself the target is the answer. Else the
    operators between are run again and again on halved intervals, first small ones around what was
    drawn, in which they are likely monotone and each element has an answer of its own, last all
    that may be served. Where the operand doesn't come near the target there is no answer.
    """
    count = drawn.numel()
    # Of each input element, the first operand element that it leads to.
    sources = operand.source.flatten()
    none = sources.numel()
    operand_elements = torch.full((count,), none).scatter_reduce(
        0, sources, torch.arange(none), "amin"
    )
    used = operand_elements < none
    operand_elements = torch.where(used, operand_elements, 0)
    target = targets.flatten()[operand_elements]
    if operand.length == 0:
        return target.to(drawn.dtype), used

    def apply_operators(values: torch.Tensor) -> torch.Tensor:
        replayed = operand.replay(values.to(drawn.dtype).reshape(drawn.shape))
        return replayed.flatten()[operand_elements].double().nan_to_num(nan=torch.inf)

    target = target.double()
    room = 1e-4 * target.abs().clamp_min(float(target.abs().mean()) + 1e-6)
    solutions, reached = drawn.flatten().clone(), torch.zeros(count, dtype=torch.bool)
    with torch.no_grad():
        for below, above in _intervals(spec, drawn):
            candidate = _halve(apply_operators, target, below, above).to(drawn.dtype)
            is_solved = used & ~reached & ((apply_operators(candidate) - target).abs() <= room)
            solutions = torch.where(is_solved, candidate, solutions)
            reached |= is_solved
            if bool(reached[used].all()):
                break
    return solutions, reached


def _halve(
    function: Callable[[torch.Tensor], torch.Tensor],
    target: torch.Tensor,
    below: torch.Tensor,
    above: torch.Tensor,
) -> torch.Tensor:
    """Return where, between each `below` and `above`, `function` passes `target`: `[n]` float64.

    Both ends and `target` are that, too, and so is what `function` makes of it.
    """
    rises = function(above) >= function(below)
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        is_less = (function(middle) < target) == rises
        below = torch.where(is_less, middle, below)
        above = torch.where(is_less, above, middle)
    return above


def _intervals(
    spec: TensorSpec, drawn: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Give intervals to look in, each wider than the one before: float64 `[n]` ends, by element."""
    flat = drawn.flatten().double()
    low, high = _search_limits(spec, drawn)
    middle = flat.nan_to_num(0.0, 0.0, 0.0)
    width = float(middle.abs().mean()) if spec.low is None else high - low
    for share in _NEAR:
        yield (
            (middle - share * width).clamp(low, high),
            (middle + share * width).clamp(low, high),
        )
    yield torch.full_like(flat, low), torch.full_like(flat, high)


def _search_limits(spec: TensorSpec, drawn: torch.Tensor) -> tuple[float, float]:
    if spec.low is not None and spec.high is not None:
        return spec.low, spec.high
    if drawn.dtype.is_floating_point:
        furthest = min(_FURTHEST, float(torch.finfo(drawn.dtype).max) / 4)
        return -furthest, furthest
    return float(drawn.min()), float(drawn.max())


def _in_range(spec: TensorSpec, values: torch.Tensor) -> torch.Tensor:
    if spec.low is None or spec.high is None:
        if values.dtype.is_floating_point:
            return torch.isfinite(values)
        return torch.zeros_like(values, dtype=torch.bool)
    wide = values.double()
    return (wide >= spec.low) & (wide <= spec.high)


def _next_number(values: torch.Tensor, direction: int) -> torch.Tensor:
    """Return the next number of the same type below (-1) or above (1), for values of any shape.

    A truth has none, and stays as it is.
    """
    if values.dtype is torch.bool:
        return values
    if not values.dtype.is_floating_point:
        return values + direction
    if values.dtype in (torch.float32, torch.float64):
        return torch.nextafter(values, torch.full_like(values, direction * torch.inf))
    # Halves: their bits are whole numbers in the order of their magnitudes.
    bits = values.view(torch.int16)
    away = torch.where(values > 0, direction, -direction).to(torch.int16)
    smallest = torch.full_like(values, direction * torch.finfo(values.dtype).tiny)
    return torch.where(values == 0, smallest, (bits + away).view(values.dtype))
