"""What is known of the elements of a tensor that was made from a model's inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

_INF = float("inf")
_NAN = float("nan")


@dataclass(frozen=True)
class Shadow:
    """Tensors of one shape, in float64, each saying one thing of each element of another tensor.

    `origin` is the number of the input's element that it comes from, counted from 1 over all inputs
    (0: it comes from none). Its value is `scale * x + offset` for that element x, rounded down by
    at most `slack`; a scale of NaN says that it depends on x in another way. Whatever x is, it
    lies from `low` to `high`. `inputs` are the indices of all inputs that had a part in it.
    """

    origin: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor
    slack: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    inputs: frozenset[int]

    @property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """The tensors, in the order of the fields: float64, all of the tensor's shape."""
        return self.origin, self.scale, self.offset, self.slack, self.low, self.high

    @property
    def is_constant(self) -> bool:
        """Whether no element comes from an input, and all are known."""
        return not self.inputs and bool(self.scale.isfinite().all())

    @property
    def is_untouched(self) -> bool:
        """Whether each element is that of the input itself."""
        return bool(((self.scale == 1) & (self.offset == 0) & (self.low == -_INF)).all())

    def clamped(self, least: float, most: float) -> Shadow:
        """Return this after `clamp(least, most)`."""
        return _replace(self, low=self.low.clamp(least, most), high=self.high.clamp(least, most))

    def bounded(self, low: float, high: float | torch.Tensor) -> Shadow:
        """Return this after something of which only that is known where its result lies.

        A tensor `high` broadcasts to its shape.
        """
        lowest, highest = (torch.as_tensor(end, dtype=torch.float64).expand(self.origin.shape)
                           for end in (low, high))  # fmt: skip
        scale, slack = torch.full_like(self.origin, _NAN), torch.zeros_like(self.origin)
        return _replace(self, scale=scale, slack=slack, low=lowest, high=highest)


def of_input(tensor: torch.Tensor, first: int, index: int) -> Shadow:
    """Return the shadow of the input at `index`, whose elements are counted from `first` + 1.

    It has the input's shape, which may be any, as its dtype may.
    """
    shape = tensor.shape
    origin = torch.arange(first + 1, first + 1 + tensor.numel(), dtype=torch.float64)
    unit, zeros = torch.ones(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    low, high = (torch.full(shape, end, dtype=torch.float64) for end in (-_INF, _INF))
    return Shadow(origin.reshape(shape), unit, zeros, zeros, low, high, frozenset({index}))


def of_constant(value: torch.Tensor | float) -> Shadow:
    """Return the shadow of a value that depends on no input, of its shape.

    That may be any, and the dtype any of real numbers.
    """
    tensor = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
    zeros = torch.zeros_like(tensor)
    return Shadow(zeros, zeros, tensor, zeros, tensor, tensor, frozenset())


def of_unknown(tensor: torch.Tensor) -> Shadow:
    """Return the shadow of a tensor that was computed from inputs, nobody knows how.

    It has the tensor's shape; that and the dtype may be any.
    """
    shape = tensor.shape
    zeros = torch.zeros(shape, dtype=torch.float64)
    nan, low, high = (torch.full(shape, v, dtype=torch.float64) for v in (_NAN, -_INF, _INF))
    return Shadow(zeros, nan, zeros, zeros, low, high, frozenset())


def _replace(shadow: Shadow, **parts: torch.Tensor) -> Shadow:
    return dataclasses.replace(shadow, **cast(dict[str, Any], parts))


def transform(
    shadows: Sequence[Shadow], move: Callable[[Sequence[torch.Tensor]], object]
) -> list[Shadow]:
    """Return the shadows of what `move` makes of the tensors: the same is done to each part.

    `move` takes one float64 tensor of each shadow, and may give one or several, of any shapes.
    """
    inputs = frozenset[int]().union(*(shadow.inputs for shadow in shadows))
    results = [move(parts) for parts in zip(*(shadow.parts for shadow in shadows), strict=True)]
    lists = [list(one) if isinstance(one, (list, tuple)) else [one] for one in results]
    return [
        Shadow(origin, scale, offset, slack, low, high, inputs)
        for origin, scale, offset, slack, low, high in zip(*lists, strict=True)
    ]


def add(left: Shadow, right: Shadow) -> Shadow:
    """Return the shadow of the sum; of two elements of inputs the first is followed no further."""
    both = (left.origin > 0) & (right.origin > 0)
    scale = torch.where(both, _NAN, left.scale + right.scale)
    return Shadow(
        torch.maximum(*torch.broadcast_tensors(left.origin, right.origin)), scale,
        left.offset + right.offset, left.slack + right.slack,
        left.low + right.low, left.high + right.high, left.inputs | right.inputs,
    )  # fmt: skip


def multiply(shadow: Shadow, factor: torch.Tensor | float) -> Shadow:
    """Return the shadow of the product with a constant, whose shape and the shadow's broadcast."""
    multiplier = torch.as_tensor(factor, dtype=torch.float64, device="cpu").detach()
    low, high = (torch.nan_to_num(end * multiplier, nan=0.0, posinf=_INF, neginf=-_INF)
                 for end in (shadow.low, shadow.high))  # fmt: skip
    scale = shadow.scale * multiplier
    # What was rounded down is rounded up on the other side of zero.
    scale = torch.where((multiplier < 0) & (shadow.slack > 0), _NAN, scale)
    origin = shadow.origin + torch.zeros_like(scale)
    return Shadow(
        origin, scale, shadow.offset * multiplier, shadow.slack * multiplier.abs(),
        torch.minimum(low, high), torch.maximum(low, high), shadow.inputs,
    )  # fmt: skip


def floor_divide(shadow: Shadow, divisor: float) -> Shadow:
    """Return the shadow of the quotient by a positive whole number, rounded down."""
    quotient = multiply(shadow, 1.0 / divisor)
    slack = quotient.slack + (divisor - 1.0) / divisor
    return _replace(quotient, slack=slack, low=quotient.low.floor(), high=quotient.high.floor())


def remainder(shadow: Shadow, divisor: float) -> Shadow:
    """Return the shadow of the remainder by a positive whole number, as Python has it."""
    if bool(((shadow.low >= 0) & (shadow.high < divisor)).all()):
        return shadow
    return shadow.bounded(0.0, divisor - 1.0)


def where(condition: torch.Tensor, left: Shadow, right: Shadow) -> Shadow:
    """Return the shadow of `where`: an input's element counts as chosen, since it may be.

    The shapes of `condition` (bool) and of both shadows broadcast.
    """
    condition, first, second = torch.broadcast_tensors(condition, left.origin, right.origin)
    takes_left = torch.where((first > 0) == (second > 0), condition, first > 0)
    (result,) = transform((left, right), lambda parts: torch.where(takes_left, parts[0], parts[1]))
    return result


def combine(shadows: Sequence[Shadow], shape: torch.Size) -> Shadow:
    """Return the shadow of an element by element result that is followed no further."""
    inputs = frozenset[int]().union(*(shadow.inputs for shadow in shadows))
    origins = torch.stack(torch.broadcast_tensors(*(one.origin for one in shadows)))
    combined = Shadow(*(origins.amax(0).expand(shape),) * 6, inputs=inputs)
    return combined.bounded(-_INF, _INF)
