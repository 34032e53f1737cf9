"""Optimizing: passes in order, each held to the tolerance, and the capture between the levels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.nn.functional import scaled_dot_product_attention

from artifacts.errors import BlessingRefused, DeliveryUnsound, UsageProblem
from artifacts.recipe import DEFAULT_PASSES, PassChoice, Recipe
from artifacts.signature import Dimension
from artifacts.steps import OptimizeJob, OptimizeResult
from artifacts.tolerance import Tolerance
from examples.user_model import LENGTH, WIDTH, SequencePooling
from tasks import optimize
from tasks.optimizing.running import difference
from tasks.passes import PASSES
from tasks.passes.base import Pass
from tests.tasks.deliveries import write_delivery

RELU_TO_LEAKY = {"old": "relu.default", "new": "leaky_relu.default"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.relu(self.norm(self.conv(x)))).mean((2, 3))  # type: ignore[no-any-return]


def run(
    tmp_path: Path,
    *passes: PassChoice,
    module: nn.Module | None = None,
    size: int = 6,
    broken_passes: Literal["refuse", "leave out"] = "refuse",
    tolerance: float = 1e-5,
) -> OptimizeResult:
    torch.manual_seed(0)
    chosen = Net() if module is None else module
    folder = tmp_path / "delivery"
    write_delivery(folder, chosen.eval(), {"x": torch.randn(size, 3, 8, 8)}, batch=Dimension(1, 32))
    bound = Tolerance(atol=tolerance / 10, rtol=tolerance)
    recipe = Recipe(
        passes=passes or DEFAULT_PASSES, broken_passes=broken_passes, tolerance={"float32": bound}
    )
    return optimize.run(OptimizeJob(folder, tmp_path / "program", recipe))


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
    told = [(e.name, c.path, c.removed) for e in result.effects for c in e.changes]
    assert ("drop-inference-noops", "dropout", {"Dropout": 1}) in told
    assert ("fold-batch-norm", "norm", {"batch_norm": 1}) in told
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


def test_a_pass_that_deviates_is_told_with_the_first_node_that_differs(
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
    ("fault", "told"),
    [
        (Crashing, "expected a pass that ends, got ZeroDivisionError"),
        (Unrunnable, "expected a program that runs as before, got RuntimeError"),
        (Turning, r"expected output 0 contiguous as before, got the strides \(1, "),
    ],
)
def test_a_pass_that_fails_or_lays_outputs_out_otherwise_is_refused_or_left_out(
    fault: type[Pass[Any]], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PASSES, "spoiling", fault)
    with pytest.raises(BlessingRefused, match=told):
        run(tmp_path / "refuse", PassChoice("spoiling"))
    (effect,) = run(
        tmp_path / "leave out", PassChoice("spoiling"), broken_passes="leave out"
    ).effects
    assert effect.left_out
    assert not effect.modified


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
        self.squeeze, self.pointwise = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(2)
        y = self.dropout(torch.relu(self.norm(self.conv(self.before(x))))).mean((2, 3))
        self.forgotten(y)
        y = y + self.narrow(rows).mean(2) + self.scattered(rows.transpose(1, 2)).mean(1)
        y = y + self.squeeze(x.abs().mean((2, 3), keepdim=True) ** -0.5).flatten(1)
        y = y + torch.relu(self.pointwise(x)).mean((2, 3))
        heads = rows[:, None, :, :16].contiguous()
        y = y + scaled_dot_product_attention(heads, heads, heads).mean((1, 2, 3))[:, None]
        y = torch.exp(y) * torch.exp(y) * torch.sigmoid(self.gate)
        y = y + torch.tanh(y) * 1e-12
        return self.last(self.middle(y))  # type: ignore[no-any-return]


def _spoiled(name: str) -> type[Pass[Any]]:
    """Return a pass that does its work, and then one thing wrong."""
    chosen: Any = PASSES[name]

    class Spoiled(chosen):  # type: ignore[misc]
        def call(self, program: Any) -> bool:
            super().call(program)
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
    }
    passes = (PassChoice(name, parameters.get(name, {})),)
    room = 0.05 if name in {"lower-precision", "quantize-weights"} else 1e-5
    module = Pooled() if name == "pool-with-attention" else Everything()
    right = run(tmp_path / "right", *passes, module=module, tolerance=room)
    assert right.effects[0].modified
    monkeypatch.setitem(PASSES, name, _spoiled(name))
    with pytest.raises(BlessingRefused, match=f"the pass {name} changes what the model computes"):
        run(tmp_path / "wrong", *passes, module=module, tolerance=room)


@pytest.mark.parametrize(("apart", "is_outside"), [(5e-6, False), (2e-5, True)])
def test_an_element_near_zero_has_the_room_of_its_outputs_size(
    apart: float, is_outside: bool
) -> None:
    before = torch.tensor([1.0, 0.0], dtype=torch.float64)
    after = before + torch.tensor([0.0, apart], dtype=torch.float64)
    assert difference(after, before, Recipe())[1] is is_outside


def test_a_pass_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match=r"one of .*drop-inference-noops.* got go-faster"):
        run(tmp_path, PassChoice("go-faster"))


def test_passes_of_the_two_levels_have_an_order(tmp_path: Path) -> None:
    chosen = (PassChoice("fold-batch-norm"), PassChoice("drop-inference-noops"))
    with pytest.raises(UsageProblem, match="Write them as drop-inference-noops, fold-batch-norm"):
        run(tmp_path, *chosen)


class Fixed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(6, -1)


def test_a_size_baked_into_the_graph_is_told_at_capture(tmp_path: Path) -> None:
    with pytest.raises((DeliveryUnsound, RuntimeError), match=r"batch 1 to 32|shape"):
        run(tmp_path, module=Fixed())


def test_a_tolerance_for_an_output_that_is_not_there_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "delivery"
    write_delivery(folder, Net().eval(), {"x": torch.randn(6, 3, 8, 8)})
    recipe = Recipe(tolerance={"float8": Tolerance()})
    with pytest.raises(UsageProblem, match=r"a dtype or an output among float64, .*got float8"):
        optimize.run(OptimizeJob(folder, tmp_path / "program", recipe))
