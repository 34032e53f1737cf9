"""Convolutions by our own functions: which become so, with what follows them, and which don't."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.channels_last import ChannelsLast
from handoff.tasks.optimize.passes.cpu_convolution import CpuConvolution
from tests.tasks.optimize.passes.exporting import apply, count

_ATEN = torch.ops.aten
POINTWISE = torch.ops.handoff.pointwise.default
DEPTHWISE = torch.ops.handoff.depthwise.default
X = torch.randn(6, 24, 7, 9, generator=torch.Generator().manual_seed(0))
# The places of activations among our own functions', and none.
RELU, SILU, RELU6, NONE = 0, 1, 5, -1


class Inverted(nn.Module):
    """An inverted residual, as networks for small devices consist of."""

    def __init__(self, activation: type[nn.Module] = nn.SiLU, stride: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.expand = nn.Conv2d(24, 48, 1)
        self.deep = nn.Conv2d(48, 48, 3, stride, 1, groups=48, bias=False)
        self.project, self.activation = nn.Conv2d(48, 24, 1, bias=False), activation()

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.expand(x))
        return x + self.project(self.activation(self.deep(y)))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """A residual block whose sum has an activation, both in place, and whose way past a layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(24, 16, 1), nn.Conv2d(16, 32, 1)
        self.past = nn.Conv2d(24, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.last(torch.relu_(self.first(x)))
        out += self.past(x)
        return torch.relu_(out)


def calls(program: Any, operator: object) -> list[torch.fx.Node]:
    return [node for node in program.graph.nodes if node.target is operator]


@pytest.mark.parametrize(
    ("activation", "place"),
    [(nn.SiLU, SILU), (nn.ReLU, RELU), (nn.ReLU6, RELU6), (lambda: nn.ReLU6(inplace=True), RELU6),
     (lambda: nn.Hardtanh(0.0, 6.0), RELU6)],
    ids=["silu", "relu", "relu6", "relu6 in place", "hardtanh"],
)  # fmt: skip
def test_layers_take_along_the_activations_and_sums_that_follow(
    activation: Any, place: int
) -> None:
    modified, program = apply(CpuConvolution({}), Inverted(activation), X)
    assert modified
    expand, project = calls(program, POINTWISE)
    (deep,) = calls(program, DEPTHWISE)
    assert [one.args[-1] for one in (expand, deep, project)] == [place, place, NONE]
    assert project.args[3] in program.graph.find_nodes(op="placeholder"), "the way past"
    for gone in (_ATEN.conv2d.default, _ATEN.add.Tensor, _ATEN.silu.default, _ATEN.relu.default):
        assert count(program, gone) == 0
    kept = [name for name in program.state_dict if not name.endswith(("rows", "taps", "bias"))]
    assert kept == [], "the layers' own weights aren't shipped beside the functions'"


def test_a_sum_in_place_of_two_layers_and_its_activation_are_one_calls() -> None:
    _, program = apply(CpuConvolution({}), Bottleneck(), X)
    layers = calls(program, POINTWISE)
    assert len(layers) == 3
    (adding,) = [layer for layer in layers if layer.args[3] is not None]
    assert adding.args[-1] == RELU
    assert adding.args[3] in layers
    assert count(program, _ATEN.add_.Tensor) == count(program, _ATEN.relu_.default) == 0


def test_the_output_lies_in_memory_as_it_did() -> None:
    module = Inverted()
    assert module(X).is_contiguous()
    _, program = apply(CpuConvolution({}), module, X)
    assert program.module()(X).is_contiguous()


def test_layers_that_share_weights_go_on_sharing_them() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(24, 24, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.layer(x) * 2.0)  # type: ignore[no-any-return]

    _, program = apply(CpuConvolution({}), Twice(), X)
    first, second = calls(program, POINTWISE)
    assert first.args[1] is second.args[1]


def test_behind_it_the_other_convolutions_still_get_their_channels_last() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.inverted = nn.Conv2d(24, 24, 3, padding=1), Inverted()

        def forward(self, x: Tensor) -> Tensor:
            return self.inverted(self.stem(x))  # type: ignore[no-any-return]

    class Both(ChannelsLast):
        def call(self, program: Any) -> bool:
            assert CpuConvolution({}).call(program)
            return super().call(program)

    _, program = apply(Both({}), Mixed(), X)
    assert count(program, _ATEN.conv2d.default) == 1
    assert (count(program, POINTWISE), count(program, DEPTHWISE)) == (2, 1)


class Followed(nn.Module):
    """A layer whose result, or whose sum, something else takes, too."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.kind = nn.Conv2d(24, 24, 1), kind

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.layer(x)
        if self.kind == "its result is given, too":
            return torch.relu(y), y
        if self.kind == "the sum is with itself":
            return (y + y,)
        if self.kind == "the sum is broadcast":
            return (y + x[:, :1],)
        if self.kind == "the sum is scaled":
            return (torch.add(y, x, alpha=2),)
        if self.kind == "what is added changes later":
            other = x * 2.0
            total = other + y
            return total, other.mul_(3.0)
        return (torch.nn.functional.hardtanh(y, -2.0, 6.0),)


@pytest.mark.parametrize(
    "kind",
    ["its result is given, too", "the sum is with itself", "the sum is broadcast",
     "the sum is scaled", "what is added changes later", "another hardtanh"],
)  # fmt: skip
def test_what_does_not_follow_it_alone_stays_behind_it(kind: str) -> None:
    _, program = apply(CpuConvolution({}), Followed(kind), X)
    (layer,) = calls(program, POINTWISE)
    assert (layer.args[3], layer.args[-1]) == (None, NONE)


class ImageWritten(nn.Module):
    """The image changes between the layer and the sum, where the function would come to stand."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(24, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        image = x * 2.0
        y = self.layer(image)
        image.mul_(3.0)
        return torch.relu(y + x) + image


def _single(**options: Any) -> nn.Module:
    return nn.Conv2d(24, options.pop("out", 24), options.pop("kernel", 1), **options)


@pytest.mark.parametrize(
    "module",
    [
        _single(stride=2), _single(padding=1), _single(groups=2),
        _single(kernel=3, padding=1), _single(kernel=3, groups=24, padding="same"),
        _single(kernel=3, groups=24, out=48), _single(kernel=3, groups=12), ImageWritten(),
        nn.Conv1d(24, 24, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
    ],
    ids=["stride", "padding", "two groups", "a larger kernel", "padding in words",
         "two kernels a channel", "two channels a group", "image written to", "one axis",
         "no layer", "no convolution"],
)  # fmt: skip
def test_other_layers_stay_as_they_are(module: nn.Module) -> None:
    x = X.flatten(2) if isinstance(module, nn.Conv1d) else X
    modified, _ = apply(CpuConvolution({}), module, x)
    assert not modified


def test_a_layer_of_single_points_is_left_to_the_pass_for_those() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(24, 24, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.mean((2, 3), keepdim=True))  # type: ignore[no-any-return]

    modified, _ = apply(CpuConvolution({}), Pooled(), X)
    assert not modified


def test_of_another_precision_and_of_weights_that_are_computed_nothing_is_changed() -> None:
    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(24, 24, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.conv2d(x, self.weight.abs())

    modified, _ = apply(CpuConvolution({}), Computed(), X)
    assert not modified
    modified, _ = apply(CpuConvolution({}), _single().double(), X.double())
    assert not modified


def test_a_bias_that_does_not_lie_in_one_piece_is_left_to_torch() -> None:
    module = _single()
    assert isinstance(module.bias, nn.Parameter)
    module.bias = nn.Parameter(torch.randn(48)[::2])
    modified, _ = apply(CpuConvolution({}), module, X)
    assert not modified


def test_one_weight_of_both_kinds_of_layers_is_kept_for_each() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(24, 1, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            deep = nn.functional.conv2d(x, self.weight, groups=24)
            return deep + nn.functional.conv2d(x[:, :1], self.weight)

    _, program = apply(CpuConvolution({}), Shared(), X)
    (wide,), (deep,) = calls(program, POINTWISE), calls(program, DEPTHWISE)
    assert wide.args[1] is not deep.args[1]


def test_what_reads_memory_by_strides_of_its_own_is_left_alone() -> None:
    class Strided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(24, 24, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).as_strided((3, 4), (24 * 63, 63))  # type: ignore[no-any-return]

    for chosen in (CpuConvolution({}), ChannelsLast({})):
        modified, _ = apply(chosen, Strided(), X)
        assert not modified
