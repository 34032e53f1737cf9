"""Replacing one operator by another."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from handoff.artifacts.errors import UsageProblem
from handoff.tasks.optimize.passes.base import apply_pass
from handoff.tasks.optimize.passes.replace_operator import ReplaceOperator


def export() -> torch.export.ExportedProgram:
    return torch.export.export(nn.Sequential(nn.ReLU(), nn.ReLU()), (torch.randn(5),))


def replace(old: str, new: str) -> ReplaceOperator:
    return ReplaceOperator({"old": old, "new": new})


def test_every_relu_becomes_a_leaky_relu() -> None:
    program = export()
    assert apply_pass(replace("relu.default", "leaky_relu.default"), program)
    x = torch.randn(5)
    want = nn.functional.leaky_relu(nn.functional.leaky_relu(x))
    torch.testing.assert_close(program.module()(x), want)


def test_where_there_is_none_nothing_is_modified() -> None:
    assert not apply_pass(replace("gelu.default", "silu.default"), export())


@pytest.mark.parametrize("name", ["no_such_operator.default", "relu.no_such_overload", ""])
def test_an_operator_that_torch_does_not_have_is_reported(name: str) -> None:
    with pytest.raises(UsageProblem, match="operator that torch doesn't have"):
        apply_pass(replace("relu.default", name), export())


def test_an_operator_that_needs_more_arguments_is_reported() -> None:
    with pytest.raises(UsageProblem, match="can't stand for"):
        apply_pass(replace("relu.default", "add.Tensor"), export())


def test_an_operator_that_gives_several_tensors_is_reported() -> None:
    with pytest.raises(UsageProblem, match="returns one tensor"):
        apply_pass(replace("relu.default", "unique_consecutive.default"), export())


def test_a_keyword_that_the_new_operator_lacks_is_reported() -> None:
    program = torch.export.export(nn.GELU(approximate="tanh"), (torch.randn(5),))
    with pytest.raises(UsageProblem, match="the keywords approximate"):
        apply_pass(replace("gelu.default", "relu.default"), program)
