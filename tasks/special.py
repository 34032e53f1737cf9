"""Special values for the input plan: where a compiler's arithmetic may part from eager's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch

from artifacts.signature import TensorSpec

Values = Literal["drawn", "zeros", "ends", "repeated", "denormal", "large", "nan", "infinite"]

# Those beyond random draws, in the order of the plan.
SPECIAL: tuple[Values, ...] = (
    "zeros", "ends", "repeated", "denormal", "large", "nan", "infinite",
)  # fmt: skip
# Kinds that need an input which may take any value: without declared limits, that is.
_UNLIMITED: frozenset[Values] = frozenset({"denormal", "large", "nan", "infinite"})

# Kinds whose errors are alike for all elements, or of one size that hides all others.
ALIKE: frozenset[Values] = frozenset({"zeros", "ends", "repeated", "denormal", "large"})

# Kinds that make infinities, their own or by overflowing on the way.
OVERFLOWING: frozenset[Values] = frozenset({"large", "infinite"})

# Large beside 1, and far from where a sum of squares leaves the type's range. Of float64 nothing
# more exact tells what large terms that cancel leave behind, so they are less large.
_LARGE = {torch.float64: 1e2, torch.float32: 1e4, torch.bfloat16: 1e4, torch.float16: 30.0}


def applies(values: Values, inputs: tuple[TensorSpec, ...]) -> bool:
    """Tell whether a case of these values differs from a random draw for such inputs."""
    if values in _UNLIMITED:
        return any(_is_unlimited(spec) for spec in inputs)
    if values == "repeated":
        return any(isinstance(axis, str) for spec in inputs for axis in spec.shape)
    return bool(inputs)


def put_in(values: Values, spec: TensorSpec, drawn: torch.Tensor) -> torch.Tensor:
    """Return `drawn` with special values in it, where the input may take them.

    `zeros` are zeros of both signs, or what is nearest to zero in the declared range; `ends` are
    the ends of that range in turns (without one -1 and 1). `repeated` has the first values of each
    dynamic axis all along it. `denormal` and `large` scale what was drawn; `nan` and `infinite` put
    such elements in the first place and the last, and leave the others.
    """
    if values == "drawn" or not drawn.numel():
        return drawn
    if values == "repeated":
        return expanded(dynamic_axes(spec), drawn).contiguous()
    if values in _UNLIMITED:
        return _put_unlimited(values, drawn) if _is_unlimited(spec) else drawn
    places = torch.arange(drawn.numel()).reshape(drawn.shape) % 2 == 0
    if drawn.dtype is torch.bool:
        return torch.zeros_like(drawn) if values == "zeros" else places
    low, high = _limits(spec, drawn)
    if values == "zeros":
        nearest = min(max(0.0, low), high)
        if nearest or not drawn.is_floating_point():
            return torch.full_like(drawn, nearest)
        return torch.where(places, 0.0, -0.0).to(drawn.dtype)
    return torch.where(places, torch.full_like(drawn, low), torch.full_like(drawn, high))


def dynamic_axes(spec: TensorSpec) -> tuple[int, ...]:
    """Return the axes whose size is a dynamic dimension."""
    return tuple(axis for axis, size in enumerate(spec.shape) if isinstance(size, str))


def expanded(axes: Iterable[int], tensor: torch.Tensor) -> torch.Tensor:
    """Return a view with the first values of each of these axes all along it, at a stride of 0."""
    first = tensor
    for axis in axes:
        first = first.narrow(axis, 0, 1)
    return first.clone().expand(tensor.shape)


def _is_unlimited(spec: TensorSpec) -> bool:
    return "float" in spec.dtype and spec.low is None


def _limits(spec: TensorSpec, drawn: torch.Tensor) -> tuple[float, float]:
    if spec.low is not None and spec.high is not None:
        return spec.low, spec.high
    if drawn.is_floating_point():
        return -1.0, 1.0
    # Whole numbers without limits are drawn from an example: no others are known to be valid.
    return float(drawn.min()), float(drawn.max())


def _put_unlimited(values: Values, drawn: torch.Tensor) -> torch.Tensor:
    kind = torch.finfo(drawn.dtype)
    if values == "denormal":
        # In float64 first: scaling in the type itself may round all of them to zero.
        return (drawn.double() * (kind.tiny / 8)).to(drawn.dtype)
    if values == "large":
        return drawn * _LARGE[drawn.dtype]
    changed = drawn.clone()
    flat = changed.view(-1)
    flat[0] = float("nan") if values == "nan" else float("inf")
    if values == "infinite" and flat.numel() > 1:
        flat[-1] = -float("inf")
    return changed
