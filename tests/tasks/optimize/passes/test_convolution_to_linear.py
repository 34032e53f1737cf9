"""Convolution to linear: what sees one point alone is a linear layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.convolution_to_linear import ConvolutionToLinear
from tests.tasks.optimize.passes.exporting import apply, count, images

_ATEN = torch.ops.aten


class SqueezeAndExcite(nn.Module):
    """As MobileNetV3 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(8, 3, 1), nn.Conv2d(3, 8, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        scale = nn.functional.adaptive_avg_pool2d(x, 1)
        return x * self.excite(self.squeeze(scale).relu()).sigmoid()  # type: ignore[no-any-return]


def test_squeeze_and_excite_becomes_two_linear_layers() -> None:
    modified, program = apply(ConvolutionToLinear({}), SqueezeAndExcite(), images(6, 7))
    assert modified
    assert count(program, _ATEN.linear.default) == 2
    assert count(program, _ATEN.conv2d.default) == 0


def test_an_activation_is_computed_right_behind_the_layer() -> None:
    _, program = apply(ConvolutionToLinear({}), SqueezeAndExcite(), images(6, 7))
    followers = [
        user.target
        for node in program.graph.find_nodes(op="call_function", target=_ATEN.linear.default)
        for user in node.users
    ]
    assert followers == [_ATEN.relu.default, _ATEN.sigmoid.default]


@pytest.mark.parametrize(
    ("module", "spatial"),
    [
        (nn.Conv1d(8, 4, 1), (1,)),
        (nn.Conv3d(8, 4, 1, bias=False), (1, 1, 1)),
        (nn.Conv2d(8, 4, 1, stride=2, dilation=3), (1, 1)),
        (nn.Conv2d(8, 4, 1, padding="same"), (1, 1)),
    ],
)
def test_convolutions_of_any_axes_and_strides_are_replaced(
    module: nn.Module, spatial: tuple[int, ...]
) -> None:
    modified, program = apply(ConvolutionToLinear({}), module, images(*spatial))
    assert modified
    assert count(program, _ATEN.linear.default) == 1


@pytest.mark.parametrize(
    ("module", "spatial"),
    [
        (nn.Conv2d(8, 4, 1), (1, 2)),
        (nn.Conv2d(8, 4, 3, padding=1), (1, 1)),
        (nn.Conv2d(8, 4, 1, padding=1), (1, 1)),
        (nn.Conv2d(8, 4, 1, groups=2), (1, 1)),
    ],
)
def test_what_is_more_than_one_product_is_left_alone(
    module: nn.Module, spatial: tuple[int, ...]
) -> None:
    assert not apply(ConvolutionToLinear({}), module, images(*spatial))[0]


class Lengths(nn.Module):
    """A convolution of sequences whose length is the input's own."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x.flatten()[None, None])  # type: ignore[no-any-return]


def test_a_size_that_only_may_be_one_is_left_alone() -> None:
    assert not apply(ConvolutionToLinear({}), Lengths(), images(1, 1))[0]
