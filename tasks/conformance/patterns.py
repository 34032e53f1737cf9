"""Calls of more than one operator, for faults that need company: public reports, as functions.

They look like the test suite's own operators to what samples them. Their names begin with
`pattern.`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

# Of their names.
PREFIX = "pattern."

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_NUMBERS = (*_FLOATS, torch.int64, torch.int32, torch.uint8, torch.int8)


@dataclass(frozen=True)
class Pattern:
    """A function that is asked about as an operator is."""

    full_name: str
    op: Callable[..., object]
    dtypes: tuple[torch.dtype, ...]
    shape: tuple[int, ...]

    def supported_dtypes(self, _device: str) -> tuple[torch.dtype, ...]:
        """Return the dtypes that it is asked about in."""
        return self.dtypes

    def sample_inputs(
        self, _device: str, dtype: torch.dtype, requires_grad: bool = False
    ) -> Iterator[Any]:
        """Give one sample."""
        from torch.testing._internal.opinfo.core import SampleInput

        numbers = torch.rand(self.shape) * 9.0 if dtype.is_floating_point else (
            torch.randint(1, 100, self.shape)
        )  # fmt: skip
        yield SampleInput(numbers.to(dtype).requires_grad_(requires_grad))


def _shift(x: torch.Tensor) -> torch.Tensor:
    moved = x.clone()
    moved[1:] = moved[:-1].clone()
    return moved


def _half_and_back(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    back = x.half().to(x.dtype)
    return back, back == x


def _bfloat16_and_back(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    back = x.bfloat16().to(x.dtype)
    return back, back == x


def _int8_and_back(x: torch.Tensor) -> torch.Tensor:
    # Within what int8 holds: beyond it C++ leaves the result open.
    return (x.clamp(-12, 12) * 10).round().to(torch.int8).to(x.dtype) / 10


def _min_max(x: torch.Tensor) -> torch.Tensor:
    low, high = x.amin(dim=-1, keepdim=True).float(), x.amax(dim=-1, keepdim=True).float()
    return (x.float() - low) / (high - low + 1.0)


def _scatter_slice(x: torch.Tensor) -> torch.Tensor:
    return torch.slice_scatter(x, x[:-1] * 2, 0, 1)


def _scatter_own(x: torch.Tensor) -> torch.Tensor:
    return torch.slice_scatter(x.clone(), x[:-1], 0, 1)


def _shift_in_place(x: torch.Tensor) -> torch.Tensor:
    x[1:] = x[:-1].clone()
    return x + 0


def _scatter_then_overwrite(x: torch.Tensor) -> torch.Tensor:
    scattered = torch.slice_scatter(x, x[1:3] + 1, 0, 0, 2)
    x.zero_()
    return scattered


PATTERNS = (
    Pattern("pattern.shift_rows", _shift, _NUMBERS, (6, 19)),
    Pattern("pattern.half_and_back", _half_and_back, (torch.float32, torch.float64), (83,)),
    Pattern("pattern.bfloat16_and_back", _bfloat16_and_back, (torch.float32, torch.float64), (83,)),
    Pattern("pattern.int8_and_back", _int8_and_back, (torch.float32,), (83,)),
    Pattern("pattern.min_max", _min_max, _NUMBERS, (3, 40)),
    Pattern("pattern.scatter_slice", _scatter_slice, _NUMBERS, (6, 19)),
    Pattern("pattern.shift_rows_in_place", _shift_in_place, _NUMBERS, (6, 19)),
    Pattern("pattern.scatter_then_overwrite", _scatter_then_overwrite, _NUMBERS, (6, 19)),
    Pattern("pattern.scatter_own_rows", _scatter_own, _NUMBERS, (6, 19)),
)
