"""Int8 weights: a quarter of the size, about half a percent off, refused where that is too much."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.recipe.choices import PassChoice
from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.optimize import step as optimize
from handoff.tasks.optimize.messages import OptimizeJob
from handoff.tasks.optimize.passes.base import apply_pass
from handoff.tasks.optimize.passes.quantize_weights import QuantizeWeights
from tests.tasks.deliveries import write_delivery
from tests.tasks.optimize.passes.exporting import count, export

_ATEN = torch.ops.aten
X = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 5, bias=False)
        with torch.no_grad():
            self.down.weight[2] = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


def relative_error(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


def test_weights_become_int8_and_the_outputs_hardly_move() -> None:
    program = export(Net(), X)
    before = sum(t.nbytes for t in program.state_dict.values())
    assert apply_pass(QuantizeWeights({}), program)
    assert {t.dtype for t in program.state_dict.values()} == {torch.int8, torch.float32}
    assert sum(t.nbytes for t in program.state_dict.values()) < 0.4 * before
    with torch.no_grad():
        got, want = program.module()(X), Net()(X)
    assert 1e-5 < relative_error(got, want) < 0.02
    assert torch.equal(got[:, 2], torch.zeros(6)), "a row of zeros stays one"
    assert not apply_pass(QuantizeWeights({}), program), "there is nothing left to do"


class Tied(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.up(x)) + self.up.weight[0]


def test_a_weight_that_something_else_uses_is_kept_beside() -> None:
    program = export(Tied(), X)
    assert apply_pass(QuantizeWeights({}), program)
    assert "up.weight" in program.state_dict
    with torch.no_grad():
        assert relative_error(program.module()(X), Tied()(X)) < 0.02


class Computed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, x)


def test_a_product_of_two_inputs_is_left_alone() -> None:
    program = torch.export.export(Computed(), (X,))
    assert not apply_pass(QuantizeWeights({}), program)
    assert count(program, _ATEN.linear.default) == 1


def test_without_room_in_the_tolerance_the_pass_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "delivery"
    write_delivery(folder, Net().eval(), {"x": X})
    recipe = Recipe(passes=(PassChoice("quantize-weights"),))
    with pytest.raises(BlessingRefused, match="the pass quantize-weights changes what the model"):
        optimize.run(OptimizeJob(folder, tmp_path / "program", recipe))
