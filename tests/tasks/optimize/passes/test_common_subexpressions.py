"""Common subexpressions: computed once, unless that would not be the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.common_subexpressions import CommonSubexpressions
from tests.tasks.optimize.passes.exporting import apply, count, export

_ATEN = torch.ops.aten
X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x).sum(1) + torch.exp(x).sum(1)


def test_chains_that_repeat_are_computed_once() -> None:
    modified, program = apply(CommonSubexpressions({}), Twice(), X)
    assert modified
    assert count(program, _ATEN.exp.default) == 1
    assert count(program, _ATEN.sum.dim_IntList) == 1


class BothOutputs(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.exp(x), torch.exp(x)


def test_a_repetition_may_be_an_output() -> None:
    modified, program = apply(CommonSubexpressions({}), BothOutputs(), X)
    assert modified
    assert len(program.graph_signature.user_outputs) == 2


class Different(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, 0.0) / torch.where(x > 0, x, -0.0) + x.sum(1, keepdim=True)


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.rand_like(x) - torch.rand_like(x)


class WrittenTo(nn.Module):
    """The first is changed in place before the second is made."""

    def forward(self, x: Tensor) -> Tensor:
        first = x + 1.0
        first.relu_()
        return first + (x + 1.0)


class WrittenThroughAView(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first = x + 1.0
        first[:, 0].mul_(3.0)
        return first + (x + 1.0)


class ReadBetweenWrites(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        held = x + 1.0
        before = torch.exp(held)
        held.mul_(2.0)
        return before - torch.exp(held)


@pytest.mark.parametrize("module", [WrittenTo(), WrittenThroughAView(), ReadBetweenWrites()])
def test_what_is_written_to_in_place_is_not_merged(module: nn.Module) -> None:
    modified, _ = apply(CommonSubexpressions({}), module, X)
    assert not modified


def test_a_positive_and_a_negative_zero_are_two_numbers() -> None:
    _, program = apply(CommonSubexpressions({}), Different(), X.abs() + 1.0)
    assert count(program, _ATEN.gt.Scalar) == 1
    assert len([n for n in program.graph.nodes if "where" in str(n.target)]) == 2


def test_random_numbers_are_drawn_as_often_as_before() -> None:
    program = export(Random(), X)
    assert not CommonSubexpressions({}).call(program)
