"""Optimizing: passes in order, each held to the tolerance, and the capture between the levels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from handoff.artifacts.errors import BlessingRefused, DeliveryUnsound, UsageProblem
from handoff.artifacts.recipe.choices import PassChoice
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.tolerance import Tolerance
from handoff.tasks.optimize import step as optimize
from handoff.tasks.optimize.check import difference
from handoff.tasks.optimize.messages import OptimizeJob
from tests.tasks.deliveries import write_delivery
from tests.tasks.optimize.optimized_net import RELU_TO_LEAKY, Net, run


def test_the_default_recipe_drops_and_folds_and_keeps_what_is_computed(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert [effect.name for effect in result.effects if effect.modified] == [
        "drop-inference-noops", "eliminate-dead-code", "fold-batch-norm",
    ]  # fmt: skip
    assert all(effect.max_abs < 1e-6 for effect in result.effects)
    (output,) = result.outputs
    assert (output.dtype, output.shape) == ("float32", ("batch", 4))
    program = torch.export.load(result.program)
    targets = {str(node.target) for node in program.graph.nodes}
    assert "aten.batch_norm.default" not in targets
    assert result.graphs is not None
    before, after = (
        {one.path: one.operators for one in graph.modules}
        for graph in (result.graphs.delivered, result.graphs.compiled)
    )
    assert (before["norm"], before["dropout"]) == (
        {"BatchNorm2d": 1, "relu": 1},
        {"Dropout": 1, "mean": 1},
    )
    # What the dropout fed is fed by the norm now, and stands with it.
    assert after["norm"] == {"relu": 1, "mean": 1}
    changes = [(e.name, c.path, c.removed) for e in result.effects for c in e.changes]
    assert ("drop-inference-noops", "dropout", {"Dropout": 1}) in changes
    assert ("fold-batch-norm", "norm", {"batch_norm": 1}) in changes
    x = torch.randn(17, 3, 8, 8)
    torch.manual_seed(0)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), Net().eval()(x))


def test_a_pass_that_changes_the_numbers_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(BlessingRefused, match="the pass replace-operator changes what the model"):
        run(tmp_path, PassChoice("replace-operator", RELU_TO_LEAKY))


def test_an_intended_change_becomes_the_reference(tmp_path: Path) -> None:
    result = run(tmp_path, PassChoice("replace-operator", RELU_TO_LEAKY, intended=True))
    assert result.reference is not None
    assert result.effects[0].max_abs > 1e-4
    x = torch.randn(4, 3, 8, 8)
    reference, program = map(torch.export.load, (result.reference, result.program))
    torch.testing.assert_close(reference.module()(x), program.module()(x))


class Roots(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).mean((1, 2, 3))


RELU_TO_LOG = {"old": "relu.default", "new": "log.default"}


def test_an_intended_change_to_nan_is_recorded_as_what_it_is(tmp_path: Path) -> None:
    chosen = PassChoice("replace-operator", RELU_TO_LOG, intended=True)
    assert run(tmp_path, chosen, module=Roots()).effects[0].max_abs == math.inf


def test_a_change_to_nan_that_is_not_intended_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BlessingRefused, match="got a difference of inf in float64"):
        run(tmp_path, PassChoice("replace-operator", RELU_TO_LOG), module=Roots())


class WithInfinities(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.norm(self.conv(x))
        return torch.where(scores > 0, scores, -math.inf)


def test_equal_infinities_are_no_difference(tmp_path: Path) -> None:
    effects = {e.name: e for e in run(tmp_path, module=WithInfinities()).effects}
    assert effects["fold-batch-norm"].modified
    assert effects["fold-batch-norm"].max_abs < 1e-6


@pytest.mark.parametrize(("apart", "is_outside"), [(5e-6, False), (2e-5, True)])
def test_an_element_near_zero_has_the_room_of_its_outputs_size(
    apart: float, is_outside: bool
) -> None:
    before = torch.tensor([1.0, 0.0], dtype=torch.float64)
    after = before + torch.tensor([0.0, apart], dtype=torch.float64)
    assert difference(after, before, Recipe())[1] is is_outside


def test_a_pass_that_is_not_there_is_reported_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match=r"one of .*drop-inference-noops.* got go-faster"):
        run(tmp_path, PassChoice("go-faster"))


def test_passes_of_the_two_levels_have_an_order(tmp_path: Path) -> None:
    chosen = (PassChoice("fold-batch-norm"), PassChoice("drop-inference-noops"))
    with pytest.raises(UsageProblem, match="Write them as drop-inference-noops, fold-batch-norm"):
        run(tmp_path, *chosen)


class Fixed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(6, -1)


def test_a_size_baked_into_the_graph_is_reported_at_capture(tmp_path: Path) -> None:
    with pytest.raises((DeliveryUnsound, RuntimeError), match=r"batch 1 to 32|shape"):
        run(tmp_path, module=Fixed())


class Quantizes(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        scores = x.mean((1, 2, 3))
        scale, zero = torch.full((1,), 0.05), torch.zeros(1)
        learnt = torch.ops.aten._fake_quantize_learnable_per_tensor_affine.default
        return learnt(scores, scale, zero, -128, 127)


def test_an_operator_that_export_does_not_know_is_reported_as_that_with_its_line(
    tmp_path: Path,
) -> None:
    with pytest.raises(DeliveryUnsound, match=r"can't capture one of its operators") as caught:
        run(tmp_path, module=Quantizes())
    assert "_fake_quantize_learnable_per_tensor_affine" in caught.value.got
    number = int(caught.value.where.removeprefix("module.py:"))
    lines = (tmp_path / "delivery" / "module.py").read_text().splitlines()
    assert "fake_quantize" in lines[number - 1]


class RoundsAsInTraining(nn.Module):
    scale: torch.Tensor
    zero: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([0.05, 0.1, 0.2]))
        self.register_buffer("zero", torch.tensor([0, 3, -2], dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.fake_quantize_per_channel_affine(x, self.scale, self.zero, 1, -128, 127)
        one = torch.fake_quantize_per_tensor_affine(h, 0.05, 0, -128, 127)
        return torch.fake_quantize_per_tensor_affine(
            one, self.scale[0], self.zero[0], -128, 127
        ).mean((1, 2, 3))


def test_what_rounds_as_in_training_is_captured_for_any_size(tmp_path: Path) -> None:
    program = torch.export.load(run(tmp_path, module=RoundsAsInTraining()).program)
    for size in (2, 9):
        x = torch.randn(size, 3, 8, 8)
        torch.testing.assert_close(program.module()(x), RoundsAsInTraining()(x))


def test_a_tolerance_for_an_output_that_is_not_there_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "delivery"
    write_delivery(folder, Net().eval(), {"x": torch.randn(6, 3, 8, 8)})
    recipe = Recipe(tolerance={"float8": Tolerance()})
    with pytest.raises(UsageProblem, match=r"a dtype or an output among float64, .*got float8"):
        optimize.run(OptimizeJob(folder, tmp_path / "program", recipe))


def _optimize_with(tmp_path: Path, tolerance: dict[str, Tolerance]) -> None:
    folder = tmp_path / "delivery"
    write_delivery(folder, Net().eval(), {"x": torch.randn(6, 3, 8, 8)})
    recipe = Recipe(tolerance=tolerance)
    optimize.run(OptimizeJob(folder, tmp_path / "program", recipe))


@pytest.mark.parametrize(
    ("name", "tolerance", "message"),
    [
        ("float32", Tolerance(rtol=1e-9), r"an rtol of at least 6.0e-08.*got rtol = 1e-09"),
        (
            "output0",
            Tolerance(rtol=1e-9),
            r"for output0 is finer.*got rtol = 1e-09.*tolerance.output0",
        ),
        ("output0", Tolerance(rtol=0.0, atol=1e-12), r"an atol of at least .*output's own size"),
    ],
)
def test_a_tolerance_finer_than_the_outputs_numbers_is_reported_before_anything_is_compiled(
    name: str, tolerance: Tolerance, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageProblem, match=message):
        _optimize_with(tmp_path, {name: tolerance})


@pytest.mark.parametrize(
    "tolerance",
    [Tolerance(rtol=1e-7), Tolerance(rtol=0.0, atol=1e-6), Tolerance(rtol=0.0, atol=0.0)],
    ids=["a spacing", "absolute alone", "the same bits"],
)
def test_a_tight_tolerance_that_can_be_met_is_none_of_those(
    tolerance: Tolerance, tmp_path: Path
) -> None:
    _optimize_with(tmp_path, {"output0": tolerance})
