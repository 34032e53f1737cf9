"""Patterns: a subgraph becomes one operator where it is the same subgraph, and nowhere else."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

from examples.user_model import ITEMS, LENGTH, WIDTH, SequencePooling
from handoff.tasks.optimize.check import compute
from handoff.tasks.optimize.passes.base import apply_pass
from handoff.tasks.optimize.passes.common_subexpressions import CommonSubexpressions
from handoff.tasks.optimize.passes.pattern import PatternPass
from handoff.tasks.optimize.passes.pool_with_attention import PoolWithAttention
from tests.tasks.optimize.passes.exporting import apply, count, export

_ATEN = torch.ops.aten
_POOLING = torch.ops.handoff.attention_pooling.default


def product_added(self: Tensor, tensor1: Tensor, tensor2: Tensor) -> Any:
    return _ATEN.add.Tensor(self, _ATEN.mul.Tensor(tensor1, tensor2))


class FuseProducts(PatternPass):
    """A team's own: `y + a * b` becomes `addcmul(y, a, b)`, whose parameters it is named after."""

    name: ClassVar[str] = "fuse-products"
    level: ClassVar[Literal["fx", "aten"]] = "aten"
    pattern = staticmethod(product_added)
    operator = _ATEN.addcmul.default


class Products(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        early = x + x.sin() * x.cos()
        return early.neg(), early + (x.neg() * early.exp())


class UsedInside(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        product = x * x.sin()
        return (x + product) * product


class Written(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        wave = x.sin()
        y = x + wave * wave
        wave.mul_(2.0)
        return y + wave


def test_every_occurrence_becomes_the_operator_and_results_may_be_used_anywhere() -> None:
    modified, program = apply(FuseProducts({}), Products(), torch.randn(6, 3))
    assert modified
    assert count(program, _ATEN.addcmul.default) == 2
    assert count(program, _ATEN.mul.Tensor) == 0


@pytest.mark.parametrize("module", [UsedInside(), Written()])
def test_what_is_used_inside_or_written_to_keeps_a_pattern_from_being_replaced(
    module: nn.Module,
) -> None:
    modified, program = apply(FuseProducts({}), module, torch.randn(6, 3))
    assert not modified
    assert count(program, _ATEN.addcmul.default) == 0


class Recommender(nn.Module):
    """The part of the seeds' recommender that pools, with two kinds of events."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items = nn.Embedding(ITEMS, WIDTH, padding_idx=0)
        self.kinds = nn.Embedding(20, WIDTH, padding_idx=0)
        self.pools = nn.ModuleList([SequencePooling(), SequencePooling()])
        self.gate = nn.Parameter(torch.rand(WIDTH))

    def forward(self, ids: Tensor, kinds: Tensor, seconds: Tensor, candidate: Tensor) -> Tensor:
        pooled, target = [], self.items(candidate)
        for place, pool in enumerate(self.pools):
            embedded = self.items(ids[:, place]) + torch.mul(self.kinds(kinds[:, place]), 0.5)
            pooled.append(pool(embedded, ids[:, place], seconds[:, place], target))
        return torch.cat(pooled, 1)


def example(rows: int = 5) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    shape = (rows, 2, LENGTH)
    ids = torch.randint(0, ITEMS, shape, generator=generator)
    ids[torch.rand(shape, generator=generator) < 0.5] = 0
    kinds = torch.randint(0, 20, shape, generator=generator)
    seconds = torch.rand(shape, generator=generator) * 700 - 20
    return ids, kinds, seconds, torch.randint(1, ITEMS, (rows,), generator=generator)


@pytest.mark.parametrize("merged", [False, True])
def test_the_recommenders_pooling_becomes_one_operator_for_each_kind_of_event(
    merged: bool,
) -> None:
    program = export(Recommender(), *example())
    if merged:
        apply_pass(CommonSubexpressions({}), program)
    before = compute(program, example(7))
    assert apply_pass(PoolWithAttention({}), program)
    assert count(program, _POOLING) == 2
    assert count(program, _ATEN.softmax.int) == 0
    torch.testing.assert_close(compute(program, example(7)), before)
    assert not apply_pass(PoolWithAttention({}), program), "there is nothing left to do"


class AnotherFill(Recommender):
    """Absent positions get 1 instead of 0: not what the operator computes."""

    def forward(self, ids: Tensor, kinds: Tensor, seconds: Tensor, candidate: Tensor) -> Tensor:
        present, target = ids[:, 0] > 0, self.items(candidate)
        gated = self.items(ids[:, 0]) + torch.mul(self.kinds(kinds[:, 0]), 0.5)
        gated = torch.mul(gated, self.gate)
        gated = torch.where(gated > 0.0, gated, torch.mul(gated, 0.2))
        total = torch.mul(gated, seconds[:, 0].unsqueeze(-1)).sum(1)
        score = torch.mul(gated, target.unsqueeze(1)).sum(-1)
        masked = torch.where(present, torch.mul(score, 0.1), torch.full_like(score, -1e9))
        attention = torch.where(present, torch.softmax(masked, 1), self.other(seconds[:, 0]))
        return torch.cat([total, torch.mul(gated, attention.unsqueeze(-1)).sum(1)], 1)

    def other(self, like: Tensor) -> Tensor:
        return torch.ones_like(like)


class Zeros(AnotherFill):
    def other(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like)


def test_what_the_operator_does_not_compute_is_left_alone() -> None:
    assert apply_pass(PoolWithAttention({}), export(Zeros(), *example()))
    assert not apply_pass(PoolWithAttention({}), export(AnotherFill(), *example()))
    ids, kinds, seconds, candidate = example()
    narrow = export(Zeros(), ids.int(), kinds, seconds, candidate)
    assert not apply_pass(PoolWithAttention({}), narrow), "ids of another dtype"
    double = export(Zeros().double(), ids, kinds, seconds.double(), candidate)
    assert not apply_pass(PoolWithAttention({}), double), "tables of another dtype"
