"""Linear layers by our own function: which become so, with what follows them, and which don't."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.convolution_to_linear import ConvolutionToLinear
from handoff.tasks.optimize.passes.cpu_linear import CpuLinear
from tests.tasks.optimize.passes.exporting import apply, count

_ATEN = torch.ops.aten
OWN = torch.ops.handoff.rows.default
X = torch.randn(6, 5, 12, generator=torch.Generator().manual_seed(0))
RELU, SIGMOID, NONE = 0, 3, -1


class Tower(nn.Module):
    """A recommender's tower: layers with activations, a way past, one output, some biases."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(12, 24), nn.Linear(24, 24, bias=False)
        self.last = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        y = torch.relu_(self.second(y).add_(y))
        return torch.sigmoid(self.last(y))


def calls(program: Any) -> list[torch.fx.Node]:
    return [node for node in program.graph.nodes if node.target is OWN]


@pytest.mark.parametrize("x", [X, X[:, 0]], ids=["rank 3", "rank 2"])
def test_layers_take_along_the_activations_and_sums_that_follow(x: Tensor) -> None:
    modified, program = apply(CpuLinear({}), Tower(), x)
    assert modified
    first, second, last = calls(program)
    assert [one.args[-1] for one in (first, second, last)] == [RELU, RELU, SIGMOID]
    assert [one.args[3] for one in (first, second, last)] == [None, first, None]
    for gone in (_ATEN.linear.default, _ATEN.relu.default, _ATEN.relu_.default, _ATEN.add_.Tensor):
        assert count(program, gone) == 0
    kept = [name for name in program.state_dict if not name.endswith(("rows", "bias"))]
    assert kept == [], "the layers' own weights aren't shipped beside the function's"


def test_layers_that_share_weights_go_on_sharing_them() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 12)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x) * 2.0)  # type: ignore[no-any-return]

    _, program = apply(CpuLinear({}), Twice(), X)
    first, second = calls(program)
    assert first.args[1] is second.args[1]


def test_a_layer_that_was_a_convolution_of_one_point_is_one_too() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(5, 7, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.layer(x[..., None].mean((2, 3), keepdim=True)))

    class Both(CpuLinear):
        def call(self, program: Any) -> bool:
            assert ConvolutionToLinear({}).call(program)
            return super().call(program)

    _, program = apply(Both({}), Pooled(), X)
    assert [one.args[-1] for one in calls(program)] == [RELU]


class Followed(nn.Module):
    """A layer whose result, or whose sum, something else takes, too."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.kind = nn.Linear(12, 12), kind

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.layer(x)
        if self.kind == "its result is given, too":
            return torch.relu(y), y
        if self.kind == "the sum is broadcast":
            return (y + x[:, :1],)
        if self.kind == "the sum is of another precision":
            return (y + x.double(),)
        other = x * 2.0
        total = other + y
        return total, other.mul_(3.0)


@pytest.mark.parametrize(
    "kind",
    ["its result is given, too", "the sum is broadcast", "the sum is of another precision",
     "what is added changes later"],
)  # fmt: skip
def test_what_does_not_follow_it_alone_stays_behind_it(kind: str) -> None:
    _, program = apply(CpuLinear({}), Followed(kind), X)
    (layer,) = calls(program)
    assert (layer.args[3], layer.args[-1]) == (None, NONE)


class Written(nn.Module):
    """What the layer is given changes before its activation, where the function would stand."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        given = x * 2.0
        y = self.layer(given)
        given.mul_(3.0)
        return torch.relu(y), given


class Computed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, x[0])


@pytest.mark.parametrize(
    "module",
    [Written(), Computed(), nn.Sequential(nn.Linear(12, 12), nn.GELU()),
     nn.Sequential(nn.Linear(12, 12), nn.Tanh()), nn.ReLU()],
    ids=["written to", "weights that are computed", "gelu", "tanh", "no layer"],
)  # fmt: skip
def test_other_layers_stay_as_they_are(module: nn.Module) -> None:
    modified, _ = apply(CpuLinear({}), module, X)
    assert not modified


def test_another_precision_stays_as_it_is() -> None:
    modified, _ = apply(CpuLinear({}), nn.Linear(12, 12).double(), X.double())
    assert not modified
