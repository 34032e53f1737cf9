"""The input plan: which inputs a model is compared on; deterministic, so that it is replayable."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from handoff.artifacts.delivery.signature import ModelSignature, TensorSpec
from handoff.tasks.verify.inputs.special import (
    PARTS,
    SPECIAL,
    ValueKind,
    applies,
    insert_special_values,
)

# Sizes that catch what compilers get wrong: one element, one more, an odd number, and one that no
# vector width divides and that is longer than the widest vector (16 float32 in AVX-512).
_REVEALING_SIZES = (7, 17)
# Where types of 8 bits are reduced: below, at and above their vectors of 16, 32 and 64 elements.
_EIGHT_BIT_SIZES = (15, 16, 31, 32, 33, 63, 64, 65)

# A range that no table has: what is drawn evenly from it holds hardly a small number.
_WIDE = 1 << 31


@dataclass(frozen=True)
class CaseSpec:
    """One case of the plan: the size of each dynamic dimension, the draw's seed, the values."""

    name: str
    sizes: Mapping[str, int]
    seed: int
    values: ValueKind = "drawn"


def plan_cases(signature: ModelSignature, seeds: int) -> tuple[CaseSpec, ...]:
    """Return the cases: every dynamic dimension at revealing sizes, others at a middle one.

    Of several dimensions all are once at their smallest together, and once at their largest.
    Every size is drawn once, and the one in the middle of them `seeds` times: what depends on a
    size shows at any values, and what depends on values at any size. Small sizes come first.
    """
    settings: list[dict[str, int]] = []
    middle = middle_sizes(signature)
    for name, limits in signature.dimensions.items():
        sizes = {limits.min, limits.second, *limits.among(*_REVEALING_SIZES), limits.max}
        settings += [{**middle, name: size} for size in sorted(sizes)]
    settings += [
        {name: limits.min for name, limits in signature.dimensions.items()},
        {name: limits.max for name, limits in signature.dimensions.items()},
    ]
    unique = {tuple(sorted(sizes.items())): sizes for sizes in settings}
    ordered = sorted(unique.values(), key=lambda sizes: (sum(sizes.values()), str(sizes)))
    middle_index = (len(ordered) - 1) // 2
    return tuple(
        CaseSpec(f"{format_sizes(sizes)} seed={seed}", sizes, seed)
        for index, sizes in enumerate(ordered)
        for seed in range(seeds if index == middle_index else 1)
    )


def eight_bit_cases(signature: ModelSignature) -> tuple[CaseSpec, ...]:
    """Return cases of the sizes that matter where types of 8 bits are reduced."""
    middle = middle_sizes(signature)
    sizes = [
        {**middle, name: size}
        for name, limits in signature.dimensions.items()
        for size in _EIGHT_BIT_SIZES
        if size in limits
    ]
    return tuple(
        CaseSpec(f"{format_sizes(case_sizes)} one-sided rows", case_sizes, 0, "one-sided rows")
        for case_sizes in sizes
    )


def special_cases(
    signature: ModelSignature, sizes: Mapping[str, int], kinds: Sequence[ValueKind] = SPECIAL
) -> tuple[CaseSpec, ...]:
    """Return the cases of special values at these sizes, those that the inputs may take."""
    text = format_sizes(sizes)
    return tuple(
        CaseSpec(f"{text} {values}", sizes, 0, values)
        for values in kinds
        if applies(values, signature.inputs)
    )


def middle_sizes(signature: ModelSignature) -> dict[str, int]:
    """Return for each dynamic dimension a size that is small, and no special case where it can."""
    return {name: limits.nearest(3) for name, limits in signature.dimensions.items()}


def format_sizes(sizes: Mapping[str, int]) -> str:
    """Return the sizes as people read them: `batch=7 length=3`."""
    return " ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed shape"


def draw_inputs(
    signature: ModelSignature, case: CaseSpec, rows: Sequence[torch.Tensor] | None = None
) -> tuple[torch.Tensor, ...]:
    """Return random inputs for `case`, in the signature's order, the same ones every time.

    Each has its spec's dtype, and its shape at the case's sizes. With `rows`, an example's inputs,
    they are drawn from those: along each dynamic dimension by the same random places in every
    input, with repetition, and as they are along the others.
    """
    drawn = _draw_inputs(signature, case, rows)
    count = len(drawn)
    # Whole numbers of an example may belong together as no draw knows: an order, a length.
    keeps_integers = rows is not None and case.values in PARTS
    return tuple(
        tensor if keeps_integers and "int" in spec.dtype
        else insert_special_values(case.values, spec, tensor, (index, count))
        for index, (spec, tensor) in enumerate(zip(signature.inputs, drawn, strict=True))
    )  # fmt: skip


def _draw_inputs(
    signature: ModelSignature, case: CaseSpec, rows: Sequence[torch.Tensor] | None
) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))
    if rows is None:
        return tuple(_draw(spec, case.sizes, generator) for spec in signature.inputs)
    lengths = signature.measure_inputs(rows)
    indices = {
        name: torch.randint(size, (case.sizes[name],), generator=generator)
        for name, size in lengths.items()
    }
    return tuple(_select(spec, tensor, indices) for spec, tensor in
                 zip(signature.inputs, rows, strict=True))  # fmt: skip


def _select(
    spec: TensorSpec, tensor: torch.Tensor, indices: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    for axis, name in enumerate(spec.shape):
        if isinstance(name, str):
            tensor = tensor.index_select(axis, indices[name])
    return tensor.clone()


def _draw(spec: TensorSpec, sizes: Mapping[str, int], generator: torch.Generator) -> torch.Tensor:
    shape = spec.sizes(sizes)
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_floating_point:
        if spec.low is None or spec.high is None:
            return torch.randn(shape, generator=generator).to(dtype)
        unit = torch.rand(shape, generator=generator)
        return (spec.low + (spec.high - spec.low) * unit).to(dtype)
    low, high = _integer_limits(spec, torch.iinfo(dtype))
    # One more than the largest number of 64 bits is none that randint takes.
    end = min(high + 1, torch.iinfo(torch.int64).max)
    drawn = torch.randint(min(low, end - 1), end, shape, generator=generator)
    if high - low > _WIDE:
        drawn = _mix_in_small_numbers(drawn, low, high, generator)
    if (low, high) == (0, 1) and len(shape) > 1 and shape[-1]:
        # A mask that shuts a whole row out makes NaN of it in many models.
        drawn[..., 0] = 1
    return drawn.to(dtype)


def _mix_in_small_numbers(
    drawn: torch.Tensor, low: int, high: int, generator: torch.Generator
) -> torch.Tensor:
    """Put numbers of all magnitudes in the place of half of what was drawn from a wide range.

    `drawn` is int64 of any shape, as is the result. Nearly all of it is large, where a model may
    look at what is within a table, and clamp the rest.
    """
    size, side, turn = (torch.rand(drawn.shape, generator=generator) for _ in range(3))
    steps = (2.0 ** (62.0 * size.double())).long() - 1
    nearest = min(max(0, low), high)
    small = nearest + torch.where((side < 0.5) & (nearest > low), -steps, steps)
    fits = (small >= low) & (small <= high)
    return torch.where((turn < 0.5) & fits, small, drawn)


def _integer_limits(spec: TensorSpec, kind: torch.iinfo) -> tuple[int, int]:
    if spec.low is None or spec.high is None:
        return 0, 1
    low, high = math.ceil(spec.low), math.floor(spec.high)
    return min(max(low, kind.min), kind.max), min(max(high, kind.min), kind.max)
