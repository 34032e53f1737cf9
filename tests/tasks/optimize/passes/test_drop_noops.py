"""Dropping what does nothing in inference."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from handoff.tasks.optimize.passes.base import PassBroken, apply_pass
from handoff.tasks.optimize.passes.drop_noops import DropInferenceNoops


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.identity = nn.Identity()
        self.linear = nn.Linear(4, 4)
        self.loss = nn.MSELoss()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(self.identity(self.dropout(x)), 0.5, False)
        return self.loss(self.linear(x), y)  # type: ignore[no-any-return]


def test_dropout_identity_and_losses_are_gone_and_the_rest_is_the_same() -> None:
    net = Net().eval()
    program = torch.fx.symbolic_trace(net)
    assert apply_pass(DropInferenceNoops({}), program)
    x = torch.randn(3, 4)
    assert torch.equal(program(x, x), net.linear(x))
    assert [n.target for n in program.graph.nodes if n.op == "call_module"] == ["linear"]
    assert set(dict(program.named_children())) == {"linear"}
    assert not apply_pass(DropInferenceNoops({}), program)


class ByKeywords(Net):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(training=False, input=self.dropout(input=x))
        return self.loss(target=y, input=self.linear(x))  # type: ignore[no-any-return]


def test_what_is_called_by_keywords_gives_its_input() -> None:
    net = ByKeywords().eval()
    program = torch.fx.symbolic_trace(net)
    assert apply_pass(DropInferenceNoops({}), program)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    assert torch.equal(program(x, y), net.linear(x))


def test_a_functional_dropout_that_is_active_is_kept() -> None:
    program = torch.fx.symbolic_trace(lambda x: functional.dropout(x, 0.5))
    program.eval()
    assert not apply_pass(DropInferenceNoops({}), program)


def test_a_module_in_training_mode_is_not_touched() -> None:
    program = torch.fx.symbolic_trace(Net())
    program.train()
    with pytest.raises(PassBroken, match="evaluation mode"):
        apply_pass(DropInferenceNoops({}), program)
