"""Pooling with attention: which calls become our own operator's, and which are left to torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.pool_with_attention import PoolWithAttention
from tests.tasks.optimize.passes.exporting import apply, count

_POOLING = torch.ops.handoff.attention_pooling.default
ITEMS, KINDS, LENGTH, WIDTH = 30, 4, 7, 16
# What a model makes of one of the parts that `Pooled` is of.
Change = Callable[[Any], Any]


class Pooled(nn.Module):
    """Exactly what the operator computes, but for a part that is changed: a tensor or a number."""

    def __init__(self, changed: str = "", change: Change | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.changed, self.change = changed, change
        columns = dict.fromkeys(("items", "kinds", "gate"), WIDTH)
        if changed in columns and change is not None:
            columns[changed] = change(WIDTH)
        self.items = nn.Embedding(ITEMS, columns["items"], padding_idx=0)
        self.kinds = nn.Embedding(KINDS, columns["kinds"], padding_idx=0)
        self.gate = nn.Parameter(torch.rand(columns["gate"]))
        self.one = nn.Parameter(torch.tensor(0.7))

    def part(self, name: str, value: Any) -> Any:
        return self.change(value) if name == self.changed and self.change else value

    def forward(self, ids: Tensor, kinds: Tensor, seconds: Tensor, target: Tensor) -> Tensor:
        present = self.part("present", ids > 0)
        ids, kinds = self.part("ids", ids), self.part("kind", kinds)
        mixed = torch.mul(self.kinds(kinds), self.number("mix", 0.5))
        gated = torch.mul(self.items(ids) + mixed, self.gate)
        gated = torch.where(gated > 0.0, gated, torch.mul(gated, self.number("slope", 0.2)))
        total = torch.mul(gated, self.part("weight", seconds).unsqueeze(-1)).sum(1)
        score = torch.mul(gated, self.part("target", target.unsqueeze(1))).sum(-1)
        fill = torch.full_like(score, self.part("fill", -1e9))
        masked = torch.where(present, torch.mul(score, self.number("scale", 0.25)), fill)
        zero = torch.zeros_like(self.part("zero", seconds))
        attention = torch.where(present, torch.softmax(masked, 1), zero)
        return torch.cat([total, torch.mul(gated, attention.unsqueeze(-1)).sum(1)], 1)

    def number(self, name: str, value: float) -> Any:
        """Return the number, or the model's own parameter where that part is changed."""
        return self.one if name == self.changed else value


def example() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, ITEMS, (5, LENGTH), generator=generator)
    ids[0] = 0
    kinds = torch.randint(0, KINDS, ids.shape, generator=generator)
    seconds, target = (torch.rand(5, size, generator=generator) for size in (LENGTH, WIDTH))
    return ids, kinds, seconds, target


def first_row(value: Tensor) -> Tensor:
    return value[:1]


def first_place(value: Tensor) -> Tensor:
    return value[:, :1]


def each_place(target: Tensor) -> Tensor:
    return target * torch.arange(1.0, LENGTH + 1).unsqueeze(-1)


def a_number(_: Tensor) -> float:
    return 0.5


def one_column(width: int) -> int:
    return width // WIDTH


@pytest.mark.parametrize("fill", [-1e9, -torch.inf])
def test_what_the_operator_computes_becomes_a_call_of_it(fill: float) -> None:
    modified, program = apply(PoolWithAttention({}), Pooled("fill", lambda _: fill), *example())
    assert modified
    assert count(program, _POOLING) == 1


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("target", first_row),
        ("target", each_place),
        ("target", a_number),
        ("weight", first_row),
        ("weight", first_place),
        ("kind", first_row),
        ("kind", first_place),
        ("ids", first_row),
        ("ids", first_place),
        ("present", first_row),
        ("present", first_place),
        ("zero", first_row),
        ("gate", one_column),
        ("kinds", one_column),
        ("items", one_column),
    ],
)
def test_what_torch_broadcasts_is_left_to_torch(part: str, change: Change) -> None:
    # Which compares with eager, too.
    modified, program = apply(PoolWithAttention({}), Pooled(part, change), *example())
    assert not modified
    assert count(program, _POOLING) == 0


@pytest.mark.parametrize("part", ["mix", "slope", "scale"])
def test_a_tensor_instead_of_a_number_is_left_to_torch(part: str) -> None:
    modified, program = apply(PoolWithAttention({}), Pooled(part), *example())
    assert not modified
    assert count(program, _POOLING) == 0


class FilledByRows(Pooled):
    """What is absent scores as much less as there are rows: a size, which is no number yet."""

    def forward(self, ids: Tensor, kinds: Tensor, seconds: Tensor, target: Tensor) -> Tensor:
        self.changed, self.change = "fill", lambda _: -1000 * ids.shape[0]
        return super().forward(ids, kinds, seconds, target)


def test_a_size_instead_of_a_number_is_left_to_torch() -> None:
    modified, program = apply(PoolWithAttention({}), FilledByRows(), *example())
    assert not modified
    assert count(program, _POOLING) == 0
