"""GELU by a hyperbolic tangent: written out as published models do, called as one operator."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.tanh_gelu import TanhGelu
from tests.tasks.optimize.passes.exporting import apply, count

_ATEN = torch.ops.aten
X = torch.randn(6, 4, 8, generator=torch.Generator().manual_seed(0)) * 3
SPECIAL = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e30, -1e30, 1e-42])


def written_out(x: Tensor, factor: float = 0.044715) -> Tensor:
    """Return it as `transformers` and the first GPT-2 write it."""
    angle = math.sqrt(2.0 / math.pi) * (x + factor * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(angle))


class Activation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return written_out(x)


class BehindLayer(nn.Module):
    """A layer on rows, whose view the activation takes: GPT-2's own layers are such."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.bias = nn.Parameter(torch.randn(8, 12)), nn.Parameter(torch.randn(12))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.addmm(self.bias, x.view(-1, 8), self.weight)
        return written_out(rows.view(x.shape[0], 4, 12))


def test_what_is_written_out_is_one_operator_and_special_values_stay_so() -> None:
    modified, program = apply(TanhGelu({}), Activation(), X)
    assert modified
    assert count(program, _ATEN.gelu.default) == 1
    assert count(program, _ATEN.tanh.default) == 0
    given = SPECIAL.expand(6, 4, 8)
    torch.testing.assert_close(program.module()(given), written_out(given), equal_nan=True)


def test_the_layer_comes_right_before_it() -> None:
    modified, program = apply(TanhGelu({}), BehindLayer(), X)
    assert modified
    (gelu,) = program.graph.find_nodes(op="call_function", target=_ATEN.gelu.default)
    assert gelu.args[0].target is _ATEN.addmm.default
    assert gelu.kwargs == {"approximate": "tanh"}


class Looked(nn.Module):
    """What is inside is given, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raised = 1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))
        return 0.5 * x * raised, raised


class OtherNumbers(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return written_out(x, factor=0.05)


class OfAnother(nn.Module):
    """The tangent is of another tensor."""

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1.0
        angle = math.sqrt(2.0 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(angle))


@pytest.mark.parametrize("module", [Looked(), OtherNumbers(), OfAnother(), nn.GELU()])
def test_anything_else_is_left_alone(module: nn.Module) -> None:
    assert not apply(TanhGelu({}), module, X)[0]
