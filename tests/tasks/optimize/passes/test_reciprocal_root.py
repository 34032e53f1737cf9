"""Reciprocal root: the power of minus a half, as eager computes it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.reciprocal_root import ReciprocalRoot
from tests.tasks.optimize.passes.exporting import apply, count

_ATEN = torch.ops.aten
X = torch.tensor([1e-42, 1e-30, 0.3, 1.0, 7.0, 1e30])
SPECIAL = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, -1.0, torch.nan])


class Power(nn.Module):
    def __init__(self, exponent: float) -> None:
        super().__init__()
        self.exponent = exponent

    def forward(self, x: Tensor) -> Tensor:
        return x**self.exponent


class InPlace(nn.Module):
    """As graph networks write the degrees' normalization."""

    def forward(self, x: Tensor) -> Tensor:
        degrees = x * 2
        root = degrees.pow_(-0.5)
        return root.masked_fill_(root == torch.inf, 0.0)


@pytest.mark.parametrize("module", [Power(-0.5), InPlace()])
def test_no_bit_of_what_eager_returns_changes(module: nn.Module) -> None:
    modified, program = apply(ReciprocalRoot({}), module, X)
    assert modified
    assert count(program, _ATEN.pow.Tensor_Scalar) == count(program, _ATEN.pow_.Scalar) == 0
    for x in (X, SPECIAL):
        got = program.module()(x)
        torch.testing.assert_close(got, module(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("exponent", [0.5, -1.0, -2.0, -0.25])
def test_other_powers_are_left_alone(exponent: float) -> None:
    assert not apply(ReciprocalRoot({}), Power(exponent), X)[0]


def test_whole_numbers_are_left_alone() -> None:
    assert not apply(ReciprocalRoot({}), Power(-0.5), torch.arange(1, 7))[0]
