"""Pruning: what hardly reaches the outputs goes, what does stays, and it is said what went."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.tolerance import Tolerance
from handoff.tasks.optimize.passes.base import apply_pass
from handoff.tasks.optimize.passes.prune_low_influence import PruneLowInfluence
from tests.tasks.optimize.passes.exporting import count, export

_ATEN = torch.ops.aten
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


class Residuals(nn.Module):
    """Three residual branches, scaled as LayerScale does; the outputs are `[N, 8]`."""

    def __init__(self, *scales: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in scales])
        self.scales = scales

    def forward(self, x: Tensor) -> Tensor:
        for layer, scale in zip(self.layers, self.scales, strict=True):
            x = x + torch.tanh(layer(x)) * scale
        return x


def prune(
    module: nn.Module, share: str = "0.01", **tolerance: float
) -> tuple[bool, torch.export.ExportedProgram, PruneLowInfluence]:
    program = export(module, X)
    chosen = PruneLowInfluence({"share": share})
    chosen.observe([(X,), (X[:1],)], Recipe(tolerance={"float32": Tolerance(**tolerance)}))
    return apply_pass(chosen, program), program, chosen


def test_branches_that_move_nothing_go_with_their_weights_and_are_listed() -> None:
    module = Residuals(1.0, 1e-10, 1e-9)
    modified, program, chosen = prune(module)
    assert modified
    assert count(program, _ATEN.linear.default) == 1
    assert set(program.state_dict) == {"layers.0.weight", "layers.0.bias"}
    torch.testing.assert_close(program.module()(X), module(X))
    assert len(chosen.notes) == 2
    assert "the outputs move by" in chosen.notes[0]
    assert "mul_1 (aten.mul.Tensor)" in chosen.notes[0], "the smallest goes first"


def test_what_moves_the_outputs_more_than_the_tolerance_stays() -> None:
    assert not prune(Residuals(1.0, 1e-5))[0]
    assert prune(Residuals(1.0, 1e-5), rmse_floor=1e-4)[0], "where the recipe has room for it"


def test_together_they_may_not_move_the_outputs_more_than_one_alone() -> None:
    module = Residuals(1.0, 1e-5, 1e-5, 1e-5, 1e-5)
    _, program, _ = prune(module, rmse_floor=7e-6)
    assert count(program, _ATEN.linear.default) > 1


def test_only_terms_below_the_share_are_tried() -> None:
    assert not prune(Residuals(1.0, 1e-10), share="1e-12")[0]


class Amplified(nn.Module):
    """A term that is small where it is added, and large at the output."""

    def forward(self, x: Tensor) -> Tensor:
        wave = torch.sin(x)
        return (wave + torch.cos(x) * 1e-6 - wave) * 1e6


def test_a_small_term_that_is_amplified_stays() -> None:
    assert not prune(Amplified())[0]


class TwoEqualTerms(nn.Module):
    """`x` is used by both terms; the result is an output, and is used again."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1e-12 + x
        return y, y.sum(1)


def test_a_term_in_the_first_place_of_an_output_goes_too() -> None:
    modified, program, _ = prune(TwoEqualTerms())
    assert modified
    assert count(program, _ATEN.add.Tensor) == 0
    (got, total), (want, sums) = program.module()(X), TwoEqualTerms()(X)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(total, sums)


@pytest.mark.parametrize("share", ["nan", "2", "-1", "little"])
def test_a_share_that_is_none_is_reported(share: str) -> None:
    with pytest.raises(UsageProblem, match="a share from 0 to 1"):
        PruneLowInfluence({"share": share})
