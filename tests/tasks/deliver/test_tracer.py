"""The tracer leaves out what only training needs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from handoff.tasks.deliver.capture.calls import describe_call
from handoff.tasks.deliver.capture.tracer import trace_for_inference, without_training_modules
from tests.toy_models import (
    DropoutInForward,
    LayerInForward,
    OptionalMask,
    OwnLossNet,
    SmallNet,
    TrainingNet,
    make,
)

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


def placeholders(module: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.find_nodes(op="placeholder")]


def test_leaves_out_a_dropout_and_a_loss_made_inside_forward() -> None:
    model = make(TrainingNet).eval()
    with pytest.raises(NameError, match="not installed as a submodule"):
        torch.fx.symbolic_trace(model)
    traced, notes = trace_for_inference(model)
    inner = model.get_submodule("inner")
    assert torch.equal(traced(X), inner(X))
    assert notes[:2] == ("left out: 1 CrossEntropyLoss", "left out: 1 Dropout")


def test_the_label_and_what_is_made_of_it_are_no_part_of_the_graph() -> None:
    traced, notes = trace_for_inference(make(TrainingNet))
    assert placeholders(traced) == ["x"]
    assert "long" not in {node.target for node in traced.graph.nodes}
    assert any("input label" in note for note in notes)


def test_an_input_that_is_used_elsewhere_too_stays() -> None:
    class UsesTheLabel(nn.Module):
        def forward(self, x: torch.Tensor, label: torch.Tensor) -> Any:
            return nn.MSELoss()(x, label) + label.mean()

    assert placeholders(trace_for_inference(UsesTheLabel())[0]) == ["x", "label"]


def test_an_input_that_nobody_uses_stays_where_nothing_was_left_out() -> None:
    class Unused(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + 1

    assert placeholders(trace_for_inference(Unused())[0]) == ["x", "y"]


def test_a_loss_called_by_keywords_gives_its_input() -> None:
    model = make(OwnLossNet).eval()
    traced, _ = trace_for_inference(model)
    scores, best = traced(X)
    assert torch.equal(scores, torch.sigmoid(model.get_submodule("inner")(X)))
    assert torch.equal(best, scores.argmax(1))


@pytest.mark.parametrize(
    "kind",
    [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
     nn.FeatureAlphaDropout, nn.Identity, nn.MSELoss],
)  # fmt: skip
def test_leaves_out_every_kind_of_dropout(kind: type[nn.Module]) -> None:
    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = kind()

        def forward(self, x: torch.Tensor) -> Any:
            return self.child(x) + 1

    traced, _ = trace_for_inference(Child())
    assert not traced.graph.find_nodes(op="call_module")
    assert not list(traced.children())


def test_traces_through_a_module_without_weights_made_inside_forward() -> None:
    model = make(DropoutInForward).eval()
    traced, _ = trace_for_inference(model)
    expected = torch.softmax(model.get_submodule("inner")(X), -1)
    assert torch.equal(traced(X), expected)


def test_refuses_a_layer_with_weights_made_inside_forward() -> None:
    with pytest.raises(NameError, match="Linear is made inside forward"):
        trace_for_inference(LayerInForward())


def test_an_argument_that_is_not_given_keeps_its_default() -> None:
    model = make(OptionalMask).eval()
    traced, _ = trace_for_inference(model, describe_call(model, [X], {})[0])
    assert placeholders(traced) == ["x"]
    assert torch.equal(traced(X), model(X))
    both, _ = trace_for_inference(model, describe_call(model, [X, X], {})[0])
    mask = X > 0
    assert torch.equal(both(X, mask), model(X, mask))
    assert not torch.equal(both(X, mask), model(X))


def test_eager_runs_leave_out_the_same_parts_and_only_meanwhile() -> None:
    model, label = make(TrainingNet).eval(), torch.ones(6)
    left_out: Counter[str] = Counter()
    with without_training_modules(left_out):
        assert torch.equal(model(X, label), model.get_submodule("inner")(X))
    assert left_out == {"Dropout": 1, "CrossEntropyLoss": 1}
    assert model(X, label).dim() == 0


def test_eager_runs_are_as_before_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError, match="deliberate"), without_training_modules():
        raise ZeroDivisionError("deliberate")
    assert nn.MSELoss()(X, X + 1).item() == pytest.approx(1.0)


def test_layers_keep_their_names() -> None:
    traced, notes = trace_for_inference(make(SmallNet))
    names = [node.target for node in traced.graph.find_nodes(op="call_module")]
    assert names == ["first", "norm", "second"]
    assert notes == ()
