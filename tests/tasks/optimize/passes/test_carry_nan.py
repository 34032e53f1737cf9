"""Carry NaN: activations that compare instead of taking a maximum."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.base import apply_pass
from handoff.tasks.optimize.passes.carry_nan import CarryNan
from tests.tasks.compile.torch_compilation import compile_as_torch_does
from tests.tasks.optimize.passes.exporting import apply, count, export

_ACTIVATIONS = [nn.ReLU(), nn.ReLU6(), nn.Hardtanh(), nn.Hardtanh(-0.5, 2.0), nn.Hardsigmoid(),
                nn.ReLU(inplace=True), nn.ReLU6(inplace=True),
                nn.Hardsigmoid(inplace=True)]  # fmt: skip
X = torch.cat([torch.linspace(-9.0, 9.0, 41), torch.tensor([math.inf, -math.inf, -0.0, math.nan])])
ROWS = X.repeat(6, 1)


@pytest.mark.parametrize("activation", _ACTIVATIONS, ids=str)
def test_every_value_is_what_it_was_and_nan_and_infinity_too(activation: nn.Module) -> None:
    program = export(activation, ROWS.clone())
    assert apply_pass(CarryNan({}), program)
    given, kept = ROWS.clone(), ROWS.clone()
    got, want = program.module()(given), activation(kept)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7, equal_nan=True)
    # What is overwritten is so afterwards.
    torch.testing.assert_close(given, kept, rtol=1e-6, atol=1e-7, equal_nan=True)
    assert count(program, torch.ops.aten.where.ScalarSelf) >= 1


def test_an_activation_that_keeps_nan_as_it_is_is_left_alone() -> None:
    assert not apply(CarryNan({}), nn.Sequential(nn.SiLU(), nn.LeakyReLU()), ROWS[:, :41])[0]


class SeenTwice(nn.Module):
    """What an activation in place has written is looked at under its argument's name."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 0.5
        nn.functional.relu(y[:, :20], inplace=True)
        return y


def test_what_is_written_in_place_is_seen_wherever_it_was() -> None:
    modified, program = apply(CarryNan({}), SeenTwice(), ROWS[:, :41])
    assert modified
    assert count(program, torch.ops.aten.relu_.default) == 0


class Activated(nn.Module):
    """Each activation behind a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 16) for _ in _ACTIVATIONS)
        self.activations = nn.ModuleList(_ACTIVATIONS)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        pairs = zip(self.layers, self.activations, strict=True)
        return tuple(activation(layer(x)) for layer, activation in pairs)


@pytest.mark.compile
def test_a_frozen_package_carries_nan_as_eager_does(tmp_path: Path) -> None:
    x = torch.randn(6, 8)
    program = export(Activated(), x)
    apply_pass(CarryNan({}), program)
    path = compile_as_torch_does(program, tmp_path, {"freezing": True})
    with torch.no_grad():
        x[0], x[1] = math.nan, math.inf
        got = torch._inductor.aoti_load_package(str(path))(x)
        for package, eager in zip(got, Activated().eval()(x), strict=True):
            torch.testing.assert_close(package, eager, rtol=1e-5, atol=1e-6, equal_nan=True)
