"""Passes that go wrong: each is caught by its name, and refused or left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.nn.functional import scaled_dot_product_attention

from examples.user_model import LENGTH, WIDTH, SequencePooling
from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.recipe.choices import PassChoice
from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.optimize.check import compute, compute_natively, difference
from handoff.tasks.optimize.passes import PASSES
from handoff.tasks.optimize.passes.base import Pass
from tests.tasks.optimize.optimized_net import RELU_TO_LEAKY, Net, run


class Spoiling(Pass[ExportedProgram]):
    """Plants a fault: one weight is a little off."""

    name: ClassVar[str] = "spoiling"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def call(self, program: ExportedProgram) -> bool:
        """Change the first weight."""
        name, weight = next(iter(program.state_dict.items()))
        program.state_dict[name] = nn.Parameter(weight * 1.001, requires_grad=False)
        return True


def test_a_planted_fault_is_caught_before_the_next_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PASSES, "spoiling", Spoiling)
    with pytest.raises(BlessingRefused, match=r"the pass spoiling .* output 0 within atol"):
        run(tmp_path, PassChoice("spoiling"), PassChoice("fold-batch-norm"))


def test_a_pass_that_deviates_is_reported_with_the_first_node_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PASSES, "spoiling", Spoiling)
    with pytest.raises(BlessingRefused, match=r"first seen at conv2d \(aten.conv2d"):
        run(tmp_path, PassChoice("spoiling"))


def test_a_pass_that_deviates_is_left_out_where_the_recipe_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PASSES, "spoiling", Spoiling)
    folding = PassChoice("fold-batch-norm")
    result = run(tmp_path, PassChoice("spoiling"), folding, broken_passes="leave out")
    spoiled, folded = result.effects
    assert not spoiled.modified
    assert "difference" in spoiled.left_out
    assert folded.modified
    x = torch.randn(5, 3, 8, 8)
    torch.manual_seed(0)
    with torch.no_grad():
        got = torch.export.load(result.program).module()(x)
        torch.testing.assert_close(got, Net().eval()(x))


def test_an_intended_change_that_is_left_out_is_no_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PASSES, "crashing", Crashing)
    chosen = PassChoice("crashing", intended=True)
    result = run(tmp_path, chosen, broken_passes="leave out")
    assert result.effects[0].left_out
    assert result.reference is None


class Crashing(Spoiling):
    """Fails of itself."""

    def call(self, program: ExportedProgram) -> bool:
        """Divide by nothing."""
        return 1 // len(program.constants) > 0


class Unrunnable(Spoiling):
    """Leaves a program that is sound to look at, and can't be run."""

    def call(self, program: ExportedProgram) -> bool:
        """Let the first convolution have a weight of other axes."""
        name, weight = next(iter(program.state_dict.items()))
        program.state_dict[name] = nn.Parameter(weight.flatten(), requires_grad=False)
        return True


class Turning(Spoiling):
    """Gives the right values in another order of memory."""

    def call(self, program: ExportedProgram) -> bool:
        """Turn the output, its strides alone."""
        output, aten = program.graph.output_node(), torch.ops.aten
        (value,) = output.all_input_nodes
        with program.graph.inserting_before(output):
            columns = program.graph.call_function(aten.t.default, (value,))
            copied = program.graph.call_function(aten.contiguous.default, (columns,))
            turned = program.graph.call_function(aten.t.default, (copied,))
        turned.meta["val"] = value.meta["val"]
        output.replace_input_with(value, turned)
        program.graph_signature.replace_all_uses(value.name, turned.name)
        return True


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Crashing, "expected a pass that ends, got ZeroDivisionError"),
        (Unrunnable, "expected a program that runs as before, got RuntimeError"),
        (Turning, r"expected output 0 contiguous as before, got the strides \(1, "),
    ],
)
def test_a_pass_that_fails_or_lays_outputs_out_otherwise_is_refused_or_left_out(
    fault: type[Pass[Any]], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PASSES, "spoiling", fault)
    with pytest.raises(BlessingRefused, match=message):
        run(tmp_path / "refuse", PassChoice("spoiling"))
    (effect,) = run(
        tmp_path / "leave out", PassChoice("spoiling"), broken_passes="leave out"
    ).effects
    assert effect.left_out
    assert not effect.modified


def test_a_pass_that_nobody_named_is_left_out_and_a_named_one_refuses() -> None:
    assert not Recipe().refuses_broken_passes
    named = Recipe(passes=(PassChoice("fold-batch-norm"),))
    assert named.refuses_broken_passes
    assert not replace(named, broken_passes="leave out").refuses_broken_passes
    assert replace(Recipe(), broken_passes="refuse").refuses_broken_passes


class WritingToWeights(Spoiling):
    """Plants its fault in the weight itself, of which there is no second copy."""

    def call(self, program: ExportedProgram) -> bool:
        """Write to the first weight."""
        with torch.no_grad():
            next(iter(program.state_dict.values())).mul_(1.001)
        return True


def test_a_pass_that_wrote_to_weights_cannot_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PASSES, "spoiling", WritingToWeights)
    with pytest.raises(BlessingRefused, match="the pass spoiling"):
        run(tmp_path, PassChoice("spoiling"), broken_passes="leave out")


class Everything(nn.Module):
    """Something to do for every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.conv, self.norm = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.middle, self.last = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.dropout, self.forgotten = nn.Dropout(0.5), nn.Linear(4, 4)
        self.gate = nn.Parameter(torch.randn(4))
        self.narrow, self.scattered = nn.Conv1d(3, 4, 1), nn.Linear(3, 4)
        self.squeeze, self.pointwise = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 16, 1)
        self.first, self.second = nn.Linear(18, 4), nn.Linear(4, 18)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(2)
        y = self.dropout(torch.relu(self.norm(self.conv(self.before(x))))).mean((2, 3))
        self.forgotten(y)
        y = y + self.narrow(rows).mean(2) + self.scattered(rows.transpose(1, 2)).mean(1)
        y = y + self.squeeze(x.abs().mean((2, 3), keepdim=True) ** -0.5).flatten(1)
        y = y + torch.relu(self.pointwise(x)).mean((1, 2, 3))[:, None]
        wide = x.repeat(1, 6, 1, 1)
        gates = torch.sigmoid(self.second(torch.relu(self.first(wide.mean((2, 3))))))
        y = y + (wide * gates[:, :, None, None]).mean((1, 2, 3))[:, None]
        angle = 0.7978845608028654 * (y + 0.044715 * torch.pow(y, 3.0))
        y = y + 0.5 * y * (1.0 + torch.tanh(angle))
        heads = rows[:, None, :, :16].contiguous()
        y = y + scaled_dot_product_attention(heads, heads, heads).mean((1, 2, 3))[:, None]
        y = torch.exp(y) * torch.exp(y) * torch.sigmoid(self.gate)
        y = y + torch.tanh(y) * 1e-12
        return self.last(self.middle(y))  # type: ignore[no-any-return]


def _spoiled(name: str, was_right: list[bool]) -> type[Pass[Any]]:
    """Return a pass that does its work, notes whether that is right, and does one thing wrong."""
    chosen: Any = PASSES[name]

    class Spoiled(chosen):  # type: ignore[misc]
        def observe(self, inputs: Sequence[tuple[torch.Tensor, ...]], recipe: Recipe) -> None:
            self.plan = inputs, recipe
            super().observe(inputs, recipe)

        def call(self, program: Any) -> bool:
            inputs, recipe = self.plan
            before = [compute(program, given) for given in inputs]
            modified = super().call(program)
            getattr(program, "graph_module", program).recompile()
            run = compute_natively if self.rounds else compute
            after = [run(program, given) for given in inputs]
            outside = [
                difference(new, old, recipe)[1]
                for olds, news in zip(before, after, strict=True)
                for old, new in zip(olds, news, strict=True)
            ]
            was_right.append(modified and not any(outside))
            if isinstance(program, ExportedProgram):
                name, weight = next(iter(program.state_dict.items()))
                program.state_dict[name] = nn.Parameter(weight * 30.0, requires_grad=False)
            else:
                relu = next(n for n in program.graph.nodes if n.target is torch.relu)
                relu.target = torch.neg
            return True

    return Spoiled


class Pooled(nn.Module):
    """The recommender's pooling, of ids and times that are made from an image."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.kinds = nn.Embedding(20, WIDTH, 0), nn.Embedding(20, WIDTH, 0)
        self.pool = SequencePooling()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seconds = x.flatten(1)[:, :LENGTH]
        ids = torch.clamp(seconds.abs() * 8.0, 0.0, 19.0).long()
        embedded = self.items(ids) + torch.mul(self.kinds(ids % 7), 0.5)
        pooled = self.pool(embedded, ids, seconds, self.items(ids[:, 0]))
        return torch.relu(pooled)


@pytest.mark.parametrize("name", sorted(PASSES))
def test_a_fault_planted_in_any_pass_is_caught_by_that_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = {
        "replace-operator": RELU_TO_LEAKY | {"new": "relu6.default"},
        "lower-precision": {"dtype": "bfloat16", "operators": "linear"},
        "prune-low-influence": {"share": "0.001"},
        "quantize-int8": {"activations": "static", "keep": "0"},
    }
    passes = (PassChoice(name, parameters.get(name, {})),)
    room = 0.05 if PASSES[name].rounds else 1e-5
    has_tables = name in {"pool-with-attention", "quantize-tables"}
    module = Pooled() if has_tables else Everything()
    was_right: list[bool] = []
    monkeypatch.setitem(PASSES, name, _spoiled(name, was_right))
    with pytest.raises(BlessingRefused, match=f"the pass {name} changes what the model computes"):
        run(tmp_path, *passes, module=module, tolerance=room)
    # It had something to do, and without the fault nobody would have objected.
    assert was_right == [True]
