"""Dead code: what no output depends on goes, what has an effect stays."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.eliminate_dead_code import EliminateDeadCode
from tests.tasks.optimize.passes.exporting import apply, count

_ATEN = torch.ops.aten
X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.forgotten = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.forgotten(y)
        return self.used(x)  # type: ignore[no-any-return]


class WritesInPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        held = x + 1.0
        held[:, 0].mul_(3.0)
        return held


def test_unused_layers_go_with_their_weights_and_unused_inputs_stay() -> None:
    modified, program = apply(EliminateDeadCode({}), Unused(), X, X + 1.0)
    assert modified
    assert count(program, _ATEN.linear.default) == 1
    assert sorted(program.state_dict) == ["used.bias", "used.weight"]
    assert len(program.graph_signature.user_inputs) == 2


def test_a_write_in_place_is_an_effect() -> None:
    _, program = apply(EliminateDeadCode({}), WritesInPlace(), X)
    assert count(program, _ATEN.mul_.Tensor) == 1
