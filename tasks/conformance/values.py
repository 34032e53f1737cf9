"""The values that ask an operator what random draws don't.

Each set changes a sample's tensors of the pair's dtype and keeps their shapes, so that one compiled
package answers all of them. They are the same every time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from handoff.tasks.conformance.sampling import DTYPES, Sample, integers_may_vary

AS_SAMPLED = "as sampled"

# What these compute is only defined for matrices of certain kinds, or by factors that are not
# unique: other values would compare what nobody promises.
_AS_SAMPLED_ONLY = (
    "linalg", "svd", "pca_lowrank", "cholesky", "geqrf", "ormqr", "lu", "triangular", "pinverse",
    "logdet", "sparse", "to_sparse", "symeig", "matrix_exp", "stft", "istft", "fft",
    "torch.ops.aten._unsafe_masked_index", "cov", "corrcoef", "grid_sampler",
    "nn.functional.grid_sample", "nn.functional.ctc_loss", "nn.functional.fractional", "norm.nuc",
)  # fmt: skip
# Eager's own loop adds what is above 0, so that a NaN is left out, which no formula says.
_DROPS_NAN = ("nn.functional.multi_margin_loss", "nn.functional.multilabel_margin_loss")
# They return which element of a window was taken, and of several NaN any may be.
_TAKES_ANY_NAN = (
    "nn.functional.max_pool", "nn.functional.adaptive_max_pool", "max_pool2d_with_indices",
)  # fmt: skip
# What a number beyond the result's range becomes, C++ leaves open.
_CASTS = (
    "byte",
    "char",
    "int",
    "short",
    "long",
    "to",
    "_to_copy",
    "type_as",
    "bucketize",
    "ldexp",
    "pattern.int8_and_back",
    "special.",
    "polygamma",
    "igamma",
    "mvlgamma",
)

_MakeValues = Callable[[torch.Tensor, int, Sample, torch.Generator], torch.Tensor | None]


def value_sets(sample: Sample) -> list[tuple[str, tuple[torch.Tensor, ...]]]:
    """Return the sample's tensors under each question that applies to it, with its name."""
    found = [(AS_SAMPLED, sample.tensors)]
    operator, kind = sample.pair.operator, DTYPES[sample.pair.dtype]
    if kind is torch.bool or operator.startswith(_AS_SAMPLED_ONLY):
        return found
    if kind.is_floating_point:
        sets = {**_FLOATS, **({} if operator in _CASTS else _EXTREMES)}
        in_one_input = {} if operator in _CASTS else _IN_ONE_INPUT
    elif integers_may_vary(operator):
        sets, in_one_input = _INTEGERS, {}
    else:
        return found
    mixed = any(tensor.dtype is not kind for tensor in sample.tensors)
    for name, make in sets.items():
        if mixed and name in _FAR_INTEGERS:
            # Rounded to the other's dtype first or not at all: a remainder of it is another.
            continue
        changed = _change_tensors(sample, kind, make, None)
        if changed is not None:
            found.append((name, changed))
    places = [i for i, tensor in enumerate(sample.tensors) if tensor.dtype is kind]
    if operator in _DROPS_NAN:
        in_one_input = {
            name: make for name, make in in_one_input.items() if name in ("large", "zero")
        }
    if operator.startswith(_TAKES_ANY_NAN):
        in_one_input = {name: make for name, make in in_one_input.items() if name != "NaN"}
    for name, make in in_one_input.items():
        for number, place in enumerate(places[:3]):
            changed = _change_tensors(sample, kind, make, place)
            if changed is not None:
                found.append((f"{name} in input {number}", changed))
    return found


def _change_tensors(
    sample: Sample, kind: torch.dtype, make: _MakeValues, only: int | None
) -> tuple[torch.Tensor, ...] | None:
    tensors = []
    for place, tensor in enumerate(sample.tensors):
        if tensor.dtype is not kind or tensor.numel() == 0 or only not in (None, place):
            tensors.append(tensor)
            continue
        generator = torch.Generator().manual_seed(place)
        values = make(tensor, place, sample, generator)
        if values is None:
            return None
        # Written into a copy, which keeps the strides.
        copy = tensor.clone()
        copy.copy_(values.reshape(tensor.shape))
        tensors.append(copy)
    return tuple(tensors)


def _uniform(
    tensor: torch.Tensor, generator: torch.Generator, low: float, high: float
) -> torch.Tensor:
    drawn = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
    return drawn * (high - low) + low


def _integers(
    tensor: torch.Tensor, generator: torch.Generator, low: int, high: int
) -> torch.Tensor:
    return torch.randint(low, high + 1, tensor.shape, generator=generator)


def _fill_every_third(tensor: torch.Tensor, value: float) -> torch.Tensor:
    copy = tensor.clone().reshape(-1)
    copy[::3] = value
    return copy


def _multiples(
    tensor: torch.Tensor, place: int, sample: Sample, generator: torch.Generator
) -> torch.Tensor | None:
    """Whole multiples of a constant, or of the other input."""
    factor = _integers(tensor, generator, -24, 24).to(torch.float64)
    constants = [number for number in sample.constants if number and abs(number) < 1e4]
    if constants:
        return (factor * constants[0]).to(tensor.dtype)
    others = [
        one for one in sample.tensors
        if one.dtype is tensor.dtype and one is not tensor and one.shape == tensor.shape
    ]  # fmt: skip
    if place == 0 and others:
        return (factor * others[0].double()).to(tensor.dtype)
    return tensor if others else None


def _large_number(tensor: torch.Tensor) -> float:
    return 300.0 if tensor.dtype is torch.float16 else 1e5


_FLOATS: dict[str, _MakeValues] = {
    "one-sided, positive": lambda t, p, s, g: _uniform(t, g, 0.5, 9.0),
    "one-sided, negative": lambda t, p, s, g: -_uniform(t, g, 0.5, 9.0),
    "narrow": lambda t, p, s, g: _uniform(t, g, 100.0, 101.0),
    "whole numbers": lambda t, p, s, g: _integers(t, g, -8, 8),
    "halves": lambda t, p, s, g: _integers(t, g, -8, 8) + 0.5,
    "tenths": lambda t, p, s, g: _integers(t, g, -30, 30) / 10.0,
    "ties": lambda t, p, s, g: _integers(t, g, 0, 2),
    "all equal": lambda t, p, s, g: torch.full(t.shape, 2.0),
    "multiples": _multiples,
}
_EXTREMES: dict[str, _MakeValues] = {
    "large": lambda t, p, s, g: _uniform(t, g, -1.0, 1.0) * _large_number(t),
    "zeros of both signs": lambda t, p, s, g: torch.where(_integers(t, g, 0, 1) > 0, 0.0, -0.0),
}
_IN_ONE_INPUT: dict[str, _MakeValues] = {
    "large": lambda t, p, s, g: _uniform(t, g, -1.0, 1.0) * _large_number(t),
    "infinity": lambda t, p, s, g: _fill_every_third(t, float("inf")),
    "minus infinity": lambda t, p, s, g: _fill_every_third(t, float("-inf")),
    "NaN": lambda t, p, s, g: _fill_every_third(t, float("nan")),
    "zero": lambda t, p, s, g: _fill_every_third(t, 0.0),
}


def _lowest(tensor: torch.Tensor) -> int:
    return 0 if tensor.dtype is torch.uint8 else -100


_FAR_INTEGERS = {"large", "beyond 2^53"}
_INTEGERS: dict[str, _MakeValues] = {
    "one-sided, positive": lambda t, p, s, g: _integers(t, g, 40, 120),
    "one-sided, negative": lambda t, p, s, g: (
        _integers(t, g, _lowest(t), -1) if _lowest(t) else None
    ),
    "narrow": lambda t, p, s, g: _integers(t, g, 100, 101),
    "both signs": lambda t, p, s, g: _integers(t, g, _lowest(t), 100),
    "ties": lambda t, p, s, g: _integers(t, g, 1, 2),
    "all equal": lambda t, p, s, g: torch.full(t.shape, 2),
    "the upper half": lambda t, p, s, g: (
        _integers(t, g, 128, 255) if t.dtype is torch.uint8 else None
    ),
    "large": lambda t, p, s, g: (
        _integers(t, g, -(10**9), 10**9) if t.dtype in (torch.int32, torch.int64) else None
    ),
    "beyond 2^53": lambda t, p, s, g: (
        _integers(t, g, 2**53, 2**53 + 1000) if t.dtype is torch.int64 else None
    ),
}
