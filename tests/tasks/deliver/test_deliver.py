"""The training side: what is delivered is what was trained, or nothing is delivered."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.delivery.signature import Dimension, TensorSpec
from handoff.artifacts.digest import digest_folder
from handoff.artifacts.errors import DeliveryUnreadable, DeliveryUnsound, UsageProblem
from handoff.tasks.deliver.capture.tracer import without_training_modules
from handoff.tasks.deliver.messages import DeliverResult
from handoff.tasks.deliver.step import deliver
from handoff.tasks.intake.loading import read_delivery
from tests import toy_models as toys

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
FRESH = torch.randn(9, 8, generator=torch.Generator().manual_seed(2))


def deliver_toy(
    kind: type[nn.Module], folder: Path, *inputs: Tensor, **options: Any
) -> tuple[nn.Module, DeliverResult]:
    model = toys.make(kind)
    return model, deliver(model, inputs or (X,), folder, name="toy", **options)


def left_behind(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def test_what_is_delivered_computes_what_the_model_does(tmp_path: Path) -> None:
    model, result = deliver_toy(toys.SmallNet, tmp_path / "toy")
    loaded = read_delivery(tmp_path / "toy")
    assert torch.equal(loaded.module(FRESH), model.eval()(FRESH))
    assert loaded.contract == result.contract
    assert result.contract.model.captured_by == "torch.fx"
    assert result.contract.model.torch == torch.__version__
    assert left_behind(tmp_path) == [tmp_path / "toy"]


def test_the_batch_is_dynamic_where_nothing_else_is_said(tmp_path: Path) -> None:
    _, result = deliver_toy(toys.SmallNet, tmp_path / "toy")
    assert result.contract.inputs == (TensorSpec("x", "float32", ("batch", 8)),)
    assert result.contract.dimensions == {"batch": Dimension(1, 1024)}


def test_examples_hold_the_given_batch_another_and_the_smallest(tmp_path: Path) -> None:
    model, _ = deliver_toy(toys.SmallNet, tmp_path / "toy")
    first, second, smallest = read_delivery(tmp_path / "toy").cases
    assert torch.equal(first.inputs[0], X)
    assert second.inputs[0].shape[0] not in (0, 1, X.shape[0])
    assert smallest.inputs[0].shape[0] == 1
    for case in (first, second, smallest):
        assert case.outputs is not None
        assert torch.equal(case.outputs[0], model.eval()(*case.inputs))


def test_fixed_shapes_have_a_case_of_other_values(tmp_path: Path) -> None:
    model, result = deliver_toy(toys.FixedBatch, tmp_path / "toy", X[:4], dynamic={})
    assert result.contract.inputs[0].shape == (4, 8)
    assert result.contract.dimensions == {}
    example, other = read_delivery(tmp_path / "toy").cases
    assert torch.equal(example.inputs[0], X[:4])
    assert not torch.equal(other.inputs[0], X[:4])
    assert other.outputs is not None
    assert torch.equal(other.outputs[0], model.eval()(*other.inputs))


def test_several_dimensions_are_dynamic(tmp_path: Path) -> None:
    ids = torch.tensor([[1, 9, 3], [2, 0, 4]])
    model, result = deliver_toy(
        toys.EmbeddedIds, tmp_path / "toy", ids,
        dynamic={"ids": {0: "batch", 1: "length"}}, dimensions={"length": (1, 50)},
    )  # fmt: skip
    expected = TensorSpec("ids", "int64", ("batch", "length"), 0.0, 9.0)
    assert result.contract.inputs == (expected,)
    assert result.contract.dimensions == {"batch": Dimension(1, 1024), "length": Dimension(1, 50)}
    longer = torch.randint(0, 10, (4, 7))
    assert torch.equal(read_delivery(tmp_path / "toy").module(longer), model.eval()(longer))


def test_the_same_model_is_delivered_as_the_same_bytes(tmp_path: Path) -> None:
    for place in ("one", "two"):
        deliver_toy(toys.SmallNet, tmp_path / place / "toy")
    assert digest_folder(tmp_path / "one") == digest_folder(tmp_path / "two")


def test_the_exporters_own_paths_stay_out_of_the_delivery(tmp_path: Path) -> None:
    deliver_toy(toys.EmbeddedIds, tmp_path / "it's here", torch.ones(3, 2, dtype=torch.int64))
    text = (tmp_path / "it's here" / "module.py").read_text()
    assert str(tmp_path) not in text
    assert "r'delivery/items.pt'" in text


def test_a_loss_inside_forward_and_its_label_are_left_out(tmp_path: Path) -> None:
    model, result = deliver_toy(toys.TrainingNet, tmp_path / "toy", X, torch.arange(6) % 4)
    assert [spec.name for spec in result.contract.inputs] == ["x"]
    assert {"left out: 1 CrossEntropyLoss", "left out: 1 Dropout"} <= set(result.notes)
    loaded = read_delivery(tmp_path / "toy").module
    assert torch.equal(loaded(FRESH), model.eval().get_submodule("inner")(FRESH))


def test_a_label_that_only_the_loss_would_refuse_is_no_obstacle(tmp_path: Path) -> None:
    # The second case draws labels from a normal distribution, and BCELoss wants 0 to 1.
    _, result = deliver_toy(toys.OwnLossNet, tmp_path / "toy", X, torch.rand(6, 4))
    assert [spec.name for spec in result.contract.inputs] == ["x"]


def test_a_dropout_inside_forward_is_left_out(tmp_path: Path) -> None:
    model, result = deliver_toy(toys.DropoutInForward, tmp_path / "toy")
    with without_training_modules():
        expected = model.eval()(FRESH)
    assert torch.equal(read_delivery(tmp_path / "toy").module(FRESH), expected)
    assert "left out: 1 Dropout" in result.notes


def test_the_callers_model_stays_as_it_was(tmp_path: Path) -> None:
    model = toys.make(toys.Counting)
    model.get_submodule("inner").eval()
    before, modes = copy.deepcopy(model), [part.training for part in model.modules()]
    random_state = torch.random.get_rng_state()
    deliver(model, (X,), tmp_path / "toy", name="toy")
    assert [part.training for part in model.modules()] == modes
    assert model.seen == []
    assert model.last is None
    for (name, value), old in zip(
        model.state_dict().items(), before.state_dict().values(), strict=True
    ):
        assert torch.equal(value, old), name
    assert torch.equal(torch.random.get_rng_state(), random_state)


def test_the_callers_model_stays_as_it_was_after_a_failure(tmp_path: Path) -> None:
    model = toys.make(toys.Noisy).train()
    with pytest.raises(DeliveryUnsound, match="run again"):
        deliver(model, (X,), tmp_path / "toy", name="toy")
    assert model.training


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (toys.Noisy, "another output when it is run again"),
        (toys.LayerInForward, "another output when it is run again"),
        (toys.FixedBatch, r"another size .* batch = 5: .*x float32 \[5, 8\].*\[size-baked-in\]"),
    ],
)
def test_refuses_what_would_not_be_what_was_trained(
    kind: type[nn.Module], match: str, tmp_path: Path
) -> None:
    with pytest.raises(DeliveryUnsound, match=match):
        deliver_toy(kind, tmp_path / "toy", X[:4])
    assert left_behind(tmp_path) == []


def test_refuses_what_no_capture_can_follow_with_the_models_own_line(tmp_path: Path) -> None:
    with pytest.raises(DeliveryUnreadable, match="can't be captured as a graph") as caught:
        deliver_toy(toys.LoopOverBatch, tmp_path / "toy", dynamic={"x": {0: "batch"}})
    file, _, line = caught.value.where.partition(":")
    assert file == "toy_models.py"
    text = Path(toys.__file__).read_text().splitlines()[int(line) - 1]
    assert text.strip() == "for row in x:"
    assert "`for row in x:`" in caught.value.got
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "line", "message"),
    [
        (toys.BranchBehindLength, "if y.sum() > 0:", "what a tensor's value decides"),
        (
            toys.QuantizesBehindLength,
            "return torch._fake_quantize",
            "fake_quantize.*It rounds as in",
        ),
    ],
)
def test_the_line_is_the_one_that_export_stops_at_and_not_what_fx_met_before(
    kind: type[nn.Module], line: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DeliveryUnreadable, match=message) as caught:
        deliver_toy(kind, tmp_path / "toy", dynamic={"x": {0: "batch"}})
    file, _, number = caught.value.where.partition(":")
    assert file == "toy_models.py"
    text = Path(toys.__file__).read_text().splitlines()[int(number) - 1]
    assert text.strip().startswith(line)
    assert "len" not in caught.value.got
    assert left_behind(tmp_path) == []


def test_what_no_capture_holds_for_at_other_sizes_is_fixed_and_said_so(tmp_path: Path) -> None:
    model, result = deliver_toy(toys.LoopOverBatch, tmp_path / "toy")
    assert result.contract.dimensions == {}
    assert result.contract.inputs[0].shape == (6, 8)
    assert "takes batch = 6 only, as in the example" in result.notes[0]
    assert re.search(
        r"toy_models.py:\d+: the model can't be captured for the sizes .*"
        r"`for row in x:`: it works for one size of batch only",
        result.notes[0],
    )
    torch.testing.assert_close(read_delivery(tmp_path / "toy").module(X)[0], model.eval()(X))


def test_export_captures_what_symbolic_tracing_can_not(tmp_path: Path) -> None:
    model, result = deliver_toy(toys.BranchOnLength, tmp_path / "toy")
    assert result.contract.model.captured_by == "torch.export strict"
    assert any("torch.fx failed" in note for note in result.notes)
    loaded = read_delivery(tmp_path / "toy").module
    torch.testing.assert_close(loaded(FRESH)[0], model.eval()(FRESH))


def test_export_captures_what_symbolic_tracing_gets_wrong(tmp_path: Path) -> None:
    assert not torch.equal(torch.fx.symbolic_trace(toys.TypeSensitive())(X), X * 2)
    _, result = deliver_toy(toys.TypeSensitive, tmp_path / "toy")
    assert result.contract.model.captured_by == "torch.export"
    assert torch.equal(read_delivery(tmp_path / "toy").module(FRESH)[0], FRESH * 2)


def test_a_wrapped_function_is_traced_through(tmp_path: Path) -> None:
    _, result = deliver_toy(toys.Wrapped, tmp_path / "toy")
    assert result.contract.model.captured_by == "torch.fx"
    assert torch.equal(read_delivery(tmp_path / "toy").module(FRESH), FRESH * 2 + 1)
    # It stays wrapped for whoever traces next.
    traced = torch.fx.symbolic_trace(toys.Wrapped())
    assert any(node.target is toys.scaled for node in traced.graph.nodes)


def test_export_leaves_out_the_loss_and_its_label_as_well(tmp_path: Path) -> None:
    model, result = deliver_toy(toys.LengthAndLoss, tmp_path / "toy", X, torch.rand(6, 4))
    assert result.contract.model.captured_by == "torch.export strict"
    assert [spec.name for spec in result.contract.inputs] == ["x"]
    expected = model.eval().get_submodule("scored")(FRESH)
    torch.testing.assert_close(read_delivery(tmp_path / "toy").module(FRESH)[0], expected)


def test_an_argument_with_a_default_may_be_left_out(tmp_path: Path) -> None:
    model, result = deliver_toy(toys.OptionalMask, tmp_path / "toy")
    assert [spec.name for spec in result.contract.inputs] == ["x"]
    assert result.contract.model.captured_by == "torch.fx"
    assert torch.equal(read_delivery(tmp_path / "toy").module(FRESH), model.eval()(FRESH))


def test_a_batch_that_the_model_takes_for_a_number_stays_dynamic(tmp_path: Path) -> None:
    _, result = deliver_toy(toys.BatchAsNumber, tmp_path / "toy")
    assert result.contract.dimensions == {"batch": Dimension(1, 1024)}
    assert torch.equal(read_delivery(tmp_path / "toy").module(FRESH)[0], FRESH / 9.0)


def test_never_writes_over_another_delivery(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "notes.txt").write_text("mine")
    with pytest.raises(UsageProblem, match="a new or an empty folder"):
        deliver_toy(toys.SmallNet, tmp_path / "toy")
    assert (tmp_path / "toy" / "notes.txt").read_text() == "mine"


def test_takes_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    deliver_toy(toys.SmallNet, tmp_path / "toy")
    assert read_delivery(tmp_path / "toy").contract.model.name == "toy"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dynamic": {"y": {0: "batch"}}}, "dynamic names the input y.*one of x"),
        ({"ranges": {"y": (0, 1)}}, "ranges names the input y"),
        ({"dimensions": {"length": (1, 5)}}, "dimensions names the dimension length.*one of batch"),
        ({"dynamic": {"x": {2: "batch"}}}, "expected one of its axes, 0 to 1, got 2"),
        ({"dynamic": {"x": {-1: "batch"}}}, "got -1. Write 1: axes"),
        ({"dynamic": {"x": "batch"}}, "expected {AXIS: DIMENSION}, got 'batch'"),
        ({"dynamic": {"x": {0: "16*n"}}}, r"Write 'n' here, and dimensions={'n': .16, 512, 16.}"),
        ({"dynamic": {"x": {0: "a b"}}}, "expected letters, digits and '_'"),
        ({"dynamic": {"x": {0: "n", 1: "n"}}}, "expected n = 6 as in another input, got 8"),
        ({"dimensions": {"batch": (1, 4)}}, "x doesn't fit .* expected batch from 1 to 4, got 6"),
        ({"dimensions": {"batch": (9, 4)}}, r"the smaller one first, got \(9, 4\)"),
        ({"dimensions": {"batch": 9}}, "Write dimensions={'batch': .1, 9.}"),
        ({"dimensions": {"batch": (1, 9, 2)}}, "Write dimensions={'batch': .2, 8, 2.}"),
        ({"dimensions": {"batch": (1, 9.5)}}, r"whole numbers, got \(1, 9.5\)"),
        ({"ranges": {"x": (1.0, 0.0)}}, "the lower one first"),
    ],
)
def test_refuses_arguments_that_contradict_the_example(
    options: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageProblem, match=match):
        deliver_toy(toys.SmallNet, tmp_path / "toy", **options)
    assert left_behind(tmp_path) == []


def test_refuses_ids_in_the_example_beyond_their_range(tmp_path: Path) -> None:
    ids = torch.full((3, 2), 7)
    with pytest.raises(UsageProblem, match=r"example of ids lies beyond .* got 7 to 7"):
        deliver_toy(toys.EmbeddedIds, tmp_path / "toy", ids, ranges={"ids": (0, 5)})


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ((), r"arguments of forward.*got 0 positional and no keyword.*required argument: 'x'"),
        ((X, X), r"got 2 .*too many positional arguments\. Give one input for"),
        (([X],), r"fails on its example inputs.*must be Tensor, not list"),
        ((object(),), "example input x can't be delivered.*got builtins.object"),
        ((3,), "hold no tensor"),
        (
            (torch.ones(2, 8, dtype=torch.complex64),),
            "real numbers, got complex64.*view_as_complex",
        ),
        ((X.to("meta"),), "isn't on the CPU: expected all of them on cpu, got cpu, meta"),
        ((torch.ones(2, 9),), r"fails on its example .* x float32 \[2, 9\].*\[example-fails\]"),
    ],
)
def test_refuses_example_inputs_that_do_not_fit(
    inputs: tuple[Any, ...], match: str, tmp_path: Path
) -> None:
    with pytest.raises((UsageProblem, DeliveryUnsound), match=match):
        deliver(toys.make(toys.SmallNet), inputs, tmp_path / "toy", name="toy")
    assert left_behind(tmp_path) == []


def test_a_wrapper_around_the_model_is_not_delivered(tmp_path: Path) -> None:
    model = toys.make(toys.SmallNet)
    compiled = torch.compile(model)
    assert isinstance(compiled, nn.Module)
    wrapped = nn.DataParallel(compiled)
    result = deliver(wrapped, (X,), tmp_path / "toy", name="toy")
    assert result.contract.model.class_name == "SmallNet"
    assert torch.equal(read_delivery(tmp_path / "toy").module(FRESH), model.eval()(FRESH))


def test_refuses_torchscript_with_a_way_out(tmp_path: Path) -> None:
    scripted = torch.jit.script(toys.make(toys.SmallNet))
    with pytest.raises(UsageProblem, match="Deliver the module that it was scripted from"):
        deliver(scripted, (X,), tmp_path / "toy", name="toy")


@pytest.mark.parametrize("name", ["", "Toy", "a b", "../toy", "x" * 64])
def test_refuses_a_name_that_no_registry_could_hold(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="can't be a model's name"):
        deliver(toys.make(toys.SmallNet), (X,), tmp_path / "toy", name=name)


def test_the_lineage_that_is_given_is_delivered(tmp_path: Path) -> None:
    lineage = Lineage(commit="0123abc", training_run="run 7")
    _, result = deliver_toy(toys.SmallNet, tmp_path / "toy", lineage=lineage)
    assert read_delivery(tmp_path / "toy").contract.source == lineage == result.contract.source
