"""Special values for the input plan: where a compiler's arithmetic may part from eager's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal

import torch

from handoff.artifacts.delivery.signature import TensorSpec

ValueKind = Literal[
    "drawn", "asked", "asked far", "asked not finite",
    "one-sided rows", "upper part", "lower part", "offset rows", "whole numbers and tenths", "ties",
    "zeros", "ends", "repeated", "denormal", "large", "nan", "infinite",
    "large in turns", "nan in turns", "infinite in turns", "near the root of the largest",
]  # fmt: skip

# Those beyond random draws that any model is asked, in the order of the plan: what differs row by
# row or lies in a part of what is drawn, and what is all alike or leaves it in all inputs.
PARTS: tuple[ValueKind, ...] = (
    "one-sided rows", "upper part", "lower part", "offset rows", "whole numbers and tenths", "ties",
    "large in turns", "nan in turns", "infinite in turns", "near the root of the largest",
)  # fmt: skip
EXTREMES: tuple[ValueKind, ...] = (
    "zeros", "ends", "repeated", "denormal", "large", "nan", "infinite",
)  # fmt: skip
SPECIAL = (*PARTS, *EXTREMES)
# Kinds that need an input which may take any value: without declared limits, that is.
_UNLIMITED: frozenset[ValueKind] = frozenset({
    "denormal", "large", "nan", "infinite", "large in turns", "nan in turns", "infinite in turns",
    "near the root of the largest",
})  # fmt: skip
_IN_TURNS: dict[ValueKind, ValueKind] = {
    "large in turns": "large", "nan in turns": "nan", "infinite in turns": "infinite",
}  # fmt: skip

# Kinds that make infinities, their own or by overflowing on the way.
OVERFLOWING: frozenset[ValueKind] = frozenset({
    "large", "infinite", "large in turns", "infinite in turns", "asked far", "asked not finite",
    "near the root of the largest",
})  # fmt: skip

# Kinds that hold what isn't a number, and infinities.
NOT_FINITE: frozenset[ValueKind] = frozenset({
    "nan", "infinite", "nan in turns", "infinite in turns", "asked not finite",
})  # fmt: skip

# Kinds that leave what was drawn where nothing was declared: nobody said that it is served.
UNDECLARED: frozenset[ValueKind] = frozenset({
    "asked far", "offset rows", "denormal", "large", "large in turns",
    "near the root of the largest",
})  # fmt: skip

# Large beside 1, and far from where a sum of squares leaves the type's range. Of float64 nothing
# more exact shows what large terms that cancel leave behind, so they are less large.
_LARGE = {torch.float64: 1e2, torch.float32: 1e4, torch.bfloat16: 1e4, torch.float16: 30.0}


def applies(values: ValueKind, inputs: tuple[TensorSpec, ...]) -> bool:
    """Return whether a case of these values differs from a random draw for such inputs."""
    unlimited = [spec for spec in inputs if spec.is_unlimited]
    if values in _IN_TURNS:
        return any(spec.shape for spec in unlimited)
    if values == "near the root of the largest":
        return any(spec.dtype == "float16" for spec in unlimited)
    if values in _UNLIMITED:
        return bool(unlimited)
    if values in ("whole numbers and tenths", "offset rows"):
        return any("float" in spec.dtype and spec.shape for spec in inputs)
    if values == "ties":
        return any(spec.dtype != "bool" and spec.shape for spec in inputs)
    if values == "repeated":
        return any(isinstance(axis, str) for spec in inputs for axis in spec.shape)
    return bool(inputs)


def insert_special_values(
    values: ValueKind, spec: TensorSpec, drawn: torch.Tensor, turn: tuple[int, int] = (0, 1)
) -> torch.Tensor:
    """Return `drawn` with special values in it, where the input may take them.

    The result has its shape and dtype, which may be any of a signature's.

    `one-sided rows` lie in the upper or the lower half of the range, in an inner part without the
    ends, or in a narrow band, row by row; `upper part` and `lower part` are such halves throughout.
    `offset rows` vary little around something large. `ties` are few values again and again, and one
    value all along every third row.
    `zeros` are zeros of both signs, or what is nearest to zero in the declared range; `ends` are
    the ends of that range in turns (without one -1 and 1). `repeated` has the first values of each
    dynamic axis all along it. `denormal` and `large` scale what was drawn; `nan` and `infinite` put
    such elements in the first place and the last, and leave the others. Kinds `in turns` do so in
    one input a row, in one place or in several: `turn` is this input's number, and how many there
    are.
    """
    if values == "drawn" or not drawn.numel():
        return drawn
    if values == "repeated":
        return expand_axes(dynamic_axes(spec), drawn).contiguous()
    if values in _PART_MAKERS:
        return _PART_MAKERS[values](spec, drawn)
    if values in _IN_TURNS:
        if not spec.is_unlimited:
            return drawn
        return _make_in_turns(_IN_TURNS[values], drawn, *turn)
    if values in _UNLIMITED:
        return _make_unlimited(values, drawn) if spec.is_unlimited else drawn
    is_even = torch.arange(drawn.numel()).reshape(drawn.shape) % 2 == 0
    if drawn.dtype is torch.bool:
        return torch.zeros_like(drawn) if values == "zeros" else is_even
    low, high = _round_limits(drawn, *_limits(spec, drawn))
    if values == "zeros":
        nearest = min(max(0.0, low), high)
        if nearest or not drawn.is_floating_point():
            return torch.full_like(drawn, nearest)
        return torch.where(is_even, 0.0, -0.0).to(drawn.dtype)
    return torch.where(is_even, torch.full_like(drawn, low), torch.full_like(drawn, high))


def _round_limits(drawn: torch.Tensor, low: float, high: float) -> tuple[float, float]:
    """Return the ends as numbers of drawn's dtype: a float64 goes beyond what 64 bits hold."""
    if drawn.is_floating_point():
        return low, high
    kind = torch.iinfo(drawn.dtype)
    return max(math.ceil(low), kind.min), min(math.floor(high), kind.max)


def dynamic_axes(spec: TensorSpec) -> tuple[int, ...]:
    """Return the axes whose size is a dynamic dimension."""
    return tuple(axis for axis, size in enumerate(spec.shape) if isinstance(size, str))


def expand_axes(axes: Iterable[int], tensor: torch.Tensor) -> torch.Tensor:
    """Return a view with the first values of each of these axes all along it, at a stride of 0.

    It has the tensor's shape and dtype, which may be any without an axis of size 0.
    """
    first = tensor
    for axis in axes:
        first = first.narrow(axis, 0, 1)
    return first.clone().expand(tensor.shape)


def _limits(spec: TensorSpec, drawn: torch.Tensor) -> tuple[float, float]:
    if spec.low is not None and spec.high is not None:
        return spec.low, spec.high
    if drawn.is_floating_point():
        return -1.0, 1.0
    # Whole numbers without limits are drawn from an example: no others are known to be valid.
    return float(drawn.min()), float(drawn.max())


def _make_unlimited(values: ValueKind, drawn: torch.Tensor) -> torch.Tensor:
    kind = torch.finfo(drawn.dtype)
    if values == "denormal":
        # In float64 first: scaling in the type itself may round all of them to zero.
        return (drawn.double() * (kind.tiny / 8)).to(drawn.dtype)
    if values == "large":
        return drawn * _LARGE[drawn.dtype]
    if values == "near the root of the largest":
        root = float(kind.max) ** 0.5
        return drawn.sign() * root * (1.0 + 0.01 * drawn.tanh()) if root < 1e3 else drawn
    changed = drawn.clone()
    flat = changed.view(-1)
    flat[0] = float("nan") if values == "nan" else float("inf")
    if values == "infinite" and flat.numel() > 1:
        flat[-1] = -float("inf")
    return changed


def _row_numbers(drawn: torch.Tensor) -> torch.Tensor:
    """Return each element's row number: its place along the first axis that has several.

    It is int64 of drawn's shape, which has at least one axis.
    """
    axis = _row_axis(drawn)
    shape = [-1 if a == axis else 1 for a in range(drawn.dim())]
    return torch.arange(drawn.shape[axis]).reshape(shape).expand(drawn.shape)


def _row_axis(drawn: torch.Tensor) -> int:
    return next((a for a, size in enumerate(drawn.shape) if size > 3), 0)


def _places_in_rows(drawn: torch.Tensor) -> torch.Tensor:
    """Return each element's place within its row: int64 of drawn's shape."""
    moved = drawn.movedim(_row_axis(drawn), 0)
    places = torch.arange(moved[0].numel()).reshape(moved.shape[1:]).expand(moved.shape)
    return places.movedim(0, _row_axis(drawn))


def _make_in_turns(values: ValueKind, drawn: torch.Tensor, turn: int, count: int) -> torch.Tensor:
    """Return `drawn`, special in the rows that are this input's turn, at staggered places.

    It is floating-point, and keeps shape and dtype.
    """
    if not drawn.dim():
        return _make_unlimited(values, drawn) if turn == 0 else drawn
    rows = _row_numbers(drawn)
    is_special = rows % (count + 1) == turn
    if values == "large":
        return torch.where(is_special, _make_unlimited(values, drawn), drawn)
    inside = _places_in_rows(drawn)
    per_row = int(inside.max()) + 1
    # One element in each of those rows, another one each time; in every other one its neighbour,
    # too, and in every fourth both ends, so that a window, a sort and an argmax see several.
    nth = rows // (count + 1)
    first = (nth * 3 + turn) % per_row
    is_special &= (
        (inside == first)
        | ((nth % 2 == 1) & (inside == (first + 1) % per_row))
        | ((nth % 4 == 3) & ((inside == 0) | (inside == per_row - 1)))
    )
    if values == "nan":
        return torch.where(is_special, torch.nan, drawn).to(drawn.dtype)
    # Of several in a row, both signs.
    sign = torch.where((rows + inside) % 2 == 0, 1.0, -1.0)
    return torch.where(is_special, sign * torch.inf, drawn).to(drawn.dtype)


def _map_between(spec: TensorSpec, drawn: torch.Tensor, low: object, high: object) -> torch.Tensor:
    """Return values between two parts of the range (0 to 1), as random as the drawn ones.

    `low` and `high` are numbers, or tensors that broadcast to drawn's shape; that and its dtype
    stay.
    """
    first, last = (torch.as_tensor(end, dtype=torch.float64) for end in (low, high))
    if drawn.dtype is torch.bool:
        return (drawn & (last > 0.5)) | (first >= 0.5)
    wide = drawn.double()
    if spec.low is None and drawn.is_floating_point():
        # As far from zero as was drawn, and beyond, on the one side that the part is of.
        unit, (lowest, highest) = torch.special.ndtr(wide), (-3.0, 3.0)
    else:
        lowest, highest = _limits(spec, drawn)
        unit = ((wide - lowest) / max(highest - lowest, 1e-300)).clamp(0.0, 1.0)
    placed = lowest + (highest - lowest) * (first + (last - first) * unit)
    if not drawn.is_floating_point():
        placed = placed.round()
    result: torch.Tensor = placed.clamp(lowest, highest).to(drawn.dtype)
    return result


def _make_one_sided(spec: TensorSpec, drawn: torch.Tensor) -> torch.Tensor:
    rows = _row_numbers(drawn) if drawn.dim() else torch.zeros((), dtype=torch.int64)
    kind = rows % 5
    low = torch.tensor([0.55, 0.0, 0.16, 0.0, 0.97], dtype=torch.float64)[kind]
    high = torch.tensor([1.0, 0.45, 0.98, 0.03, 1.0], dtype=torch.float64)[kind]
    band = (rows // 5 % 7).double() / 8.0
    is_band = (kind == 2) & (rows // 5 % 2 == 1)
    return _map_between(
        spec, drawn, torch.where(is_band, band, low), torch.where(is_band, band + 0.06, high)
    )


def _make_offset(spec: TensorSpec, drawn: torch.Tensor) -> torch.Tensor:
    if not drawn.is_floating_point() or not drawn.dim():
        return drawn
    rows = _row_numbers(drawn)
    if spec.low is None:
        half = drawn.dtype in (torch.float16, torch.bfloat16)
        offsets = torch.tensor([30.0, -30.0, 60.0] if half else [1e3, -1e3, 1e4])
        return (offsets[rows % 3] + drawn.double()).to(drawn.dtype)
    center = 0.1 + 0.8 * (rows % 7).double() / 6.0
    return _map_between(spec, drawn, center, center + 1e-3)


def _make_grid(spec: TensorSpec, drawn: torch.Tensor) -> torch.Tensor:
    if not drawn.is_floating_point():
        return drawn
    rows = _row_numbers(drawn) if drawn.dim() else torch.zeros((), dtype=torch.int64)
    wide = drawn.double() * (4.0 if spec.low is None else 1.0)
    placed = torch.where(rows % 2 == 0, wide.round(), (wide * 10.0).round() / 10.0)
    if spec.low is not None and spec.high is not None:
        placed = torch.where((placed >= spec.low) & (placed <= spec.high), placed, drawn.double())
    return placed.to(drawn.dtype)


def _make_ties(spec: TensorSpec, drawn: torch.Tensor) -> torch.Tensor:
    if drawn.dtype is torch.bool:
        return drawn
    positions = torch.arange(drawn.numel()).reshape(drawn.shape)
    few = (positions * 7 + positions // 3) % min(3, drawn.numel())
    rows = _row_numbers(drawn) if drawn.dim() else positions
    indices = torch.where(rows % 3 == 2, rows % drawn.numel(), few)
    return drawn.flatten()[indices.flatten()].reshape(drawn.shape)


_PART_MAKERS: dict[ValueKind, Callable[[TensorSpec, torch.Tensor], torch.Tensor]] = {
    "one-sided rows": _make_one_sided,
    "upper part": lambda spec, drawn: _map_between(spec, drawn, 0.55, 0.97),
    "lower part": lambda spec, drawn: _map_between(spec, drawn, 0.03, 0.45),
    "offset rows": _make_offset,
    "whole numbers and tenths": _make_grid,
    "ties": _make_ties,
}
