"""Ranges that torch computed for a size become dimensions, whatever their ends are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.tasks.optimize.capture import capture, describe_outputs
from handoff.tasks.optimize.ranges import LARGEST_SIZE, to_dimension


@pytest.mark.parametrize(
    ("low", "high", "want"),
    [
        (2, 9, Dimension(2, 9)),
        (0, int_oo, Dimension(0, LARGEST_SIZE)),
        (3, 2**62, Dimension(3, LARGEST_SIZE)),
        (-int_oo, int_oo, Dimension(0, LARGEST_SIZE)),
        (-5, 4, Dimension(0, 4)),
    ],
)
def test_open_ends_are_none_and_the_largest_size(low: Any, high: Any, want: Dimension) -> None:
    assert to_dimension(ValueRanges(low, high)) == want


class _Sized(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, ids: Tensor) -> Any:
        flat = ids.flatten()
        if self.name == "bincount":
            return torch.bincount(flat, minlength=5)
        if self.name == "repeat_interleave":
            return torch.repeat_interleave(flat * 2, flat)
        if self.name == "unique":
            return torch.unique(flat)
        return torch.nonzero(ids)


@pytest.mark.parametrize("name", ["bincount", "repeat_interleave", "unique", "nonzero"])
def test_an_output_whose_size_only_the_data_decides_has_a_range(name: str) -> None:
    signature = ModelSignature(
        (TensorSpec("ids", "int64", ("batch", 3), 0.0, 9.0),), (), {"batch": Dimension(1, 64)}
    )
    program = capture(_Sized(name), signature)
    (spec,), computed = describe_outputs(program, signature)
    limits = computed[str(spec.shape[0])]
    assert 0 <= limits.min <= 10 < limits.max <= LARGEST_SIZE
