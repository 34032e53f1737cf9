"""The search for the faulty part, by a compiler that is simulated: wrong where a test says so."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.fx
from torch import Tensor, nn

from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.localize.measure import judge, worst
from handoff.tasks.localize.search import Search
from handoff.tasks.localize.subgraph import Subgraph, computing_nodes, cut, record
from handoff.tasks.localize.trials import BudgetSpent, PartResult, Trials
from handoff.tasks.verify.float64 import flatten_tensors
from tests.tasks.optimize.passes.exporting import export


class Deep(nn.Module):
    """Ninety-six pointwise operators in a row, with shortcuts; `[N, 8]` to `[N, 8]`."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(16):
            y = torch.sin(x * 1.5) + 0.25
            x = x + torch.tanh(torch.cos(y))
        return x


# Which nodes a compiler would make wrong in a part, by their names.
Fault = Callable[[Subgraph], set[str]]


def alone(name: str) -> Fault:
    """An operator that is wrong wherever it is compiled."""
    return lambda part: {node.name for node in part.nodes} & {name}


def fused(*names: str) -> Fault:
    """Operators that are wrong where they are compiled together, and all but the last unseen."""

    def fault(part: Subgraph) -> set[str]:
        compiled = {node.name for node in part.nodes}
        together = set(names) <= compiled and not set(names[:-1]) & set(part.outputs)
        return {names[-1]} if together else set()

    return fault


class _Faulty(torch.fx.Interpreter):
    def __init__(self, part: Subgraph, wrong: set[str]) -> None:
        super().__init__(part.module)
        copies = [n for n in part.module.graph.nodes if n.op == "call_function"]
        self._wrong = {
            copy for copy, node in zip(copies[-len(part.nodes) :], part.nodes, strict=True)
            if node.name in wrong
        }  # fmt: skip

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        return value * 1.01 if n in self._wrong else value


class Simulated:
    """Trials that compile nothing."""

    def __init__(self, fault: Fault, compiles: int) -> None:
        self.job = SimpleNamespace(recipe=Recipe())
        self.notes: list[str] = []
        self.made, self._fault, self._compiles = 0, fault, compiles

    def compile_part(self, part: Subgraph) -> PartResult:
        if self.made == self._compiles:
            raise BudgetSpent
        self.made += 1
        outputs = flatten_tensors(_Faulty(part, self._fault(part)).run(*part.inputs))
        judged = judge("", outputs, *part.run(), Recipe())
        return PartResult(part, tuple(judged), (), outputs=outputs)


def search(
    fault: Fault, compiles: int = 10, known: tuple[tuple[str, ...], ...] = ()
) -> tuple[list[str], Search, Simulated]:
    """Return the names of the part that is found, the search, and the trials that it took."""
    program = export(Deep(), torch.randn(6, 8))
    inputs = (torch.randn(3, 8, generator=torch.Generator().manual_seed(0)),)
    whole = cut(program, record(program, inputs), computing_nodes(program))
    simulated = Simulated(fault, compiles)
    final = worst(simulated.compile_part(whole).judged)
    assert final is not None
    simulated.made = 0
    searched = Search(cast(Trials, simulated), program, inputs, final)
    searched.try_known(known)
    seen = searched.find()
    names = [node.name for node in seen.part.nodes] if seen else []
    return names, searched, simulated


@pytest.mark.parametrize("name", ["mul", "sin_7", "add_15", "cos_15", "tanh_15"])
def test_one_operator_is_found_in_two_compiles(name: str) -> None:
    names, searched, simulated = search(alone(name))
    assert names == [name]
    assert simulated.made == 2
    assert searched.is_complete
    assert searched.others == []


@pytest.mark.parametrize("names", [("mul_3", "sin_3"), ("sin_9", "add_18"), ("cos_15", "tanh_15")])
def test_two_operators_that_are_wrong_only_together_are_found_within_ten(
    names: tuple[str, str],
) -> None:
    found, searched, simulated = search(fused(*names))
    assert set(found) == set(names)
    assert searched.is_complete
    assert "the fault goes away" in simulated.notes[0]


def test_what_a_table_knows_is_found_in_one_compile() -> None:
    known = (("aten.tanh.default(float32)",), ("aten.add.Tensor(float32, float32)",))
    names, searched, simulated = search(alone("tanh"), known=known)
    assert (names, simulated.made, searched.is_complete) == (["tanh"], 1, True)


def test_another_overload_of_what_a_table_knows_is_tried_as_well() -> None:
    names, _, simulated = search(alone("mul"), known=(("aten.mul.Scalar(float32)",),))
    assert (names, simulated.made) == (["mul"], 1)


def test_calls_that_are_known_to_be_wrong_together_are_tried_where_one_uses_the_other() -> None:
    known = (("aten.mul.Tensor(float32)", "aten.sin.default(float32)"),)
    found, searched, _ = search(fused("mul_3", "sin_3"), known=known)
    assert set(found) == {"mul_3", "sin_3"}
    assert searched.is_complete


def test_what_is_known_and_right_here_hides_no_other_fault() -> None:
    known = (("aten.tanh.default(float32)",), ("aten.erf.default(float32)",))
    names, searched, _ = search(alone("sin_7"), known=known)
    assert names == ["sin_7"]
    assert searched.is_complete


def test_two_faults_are_told_apart() -> None:
    def both(part: Subgraph) -> set[str]:
        return alone("sin_4")(part) | alone("cos_11")(part)

    names, searched, _ = search(both)
    assert names == ["sin_4"]
    assert [node.name for node in searched.others] == ["cos_11"]


def test_where_the_budget_ends_the_smallest_part_so_far_is_reported_as_such() -> None:
    found, searched, simulated = search(fused("mul_3", "sin_3"), compiles=3)
    assert not searched.is_complete
    assert simulated.notes[-1] == "the budget was spent before the smallest part was found"
    assert not found or {"mul_3", "sin_3"} < set(found)
