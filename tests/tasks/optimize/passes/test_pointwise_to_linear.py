"""Pointwise to linear: a kernel of one point mixes channels as a linear layer does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.channels_last import ChannelsLast
from handoff.tasks.optimize.passes.pointwise_to_linear import PointwiseToLinear
from tests.tasks.optimize.passes.exporting import apply, count, export, images

_ATEN = torch.ops.aten


class Residual(nn.Module):
    """A block as MobileNets have it: wider by points, by channel, narrower by points."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.project = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 8, 1, bias=False)
        self.by_channel = nn.Conv2d(16, 16, 3, padding=1, groups=16)

    def forward(self, x: Tensor) -> Tensor:
        wide = nn.functional.hardswish(self.expand(x), inplace=True)
        return x + self.project(self.by_channel(wide).relu())  # type: ignore[no-any-return]


def test_convolutions_by_points_become_linear_layers() -> None:
    modified, program = apply(PointwiseToLinear({}), Residual(), images(6, 7))
    assert modified
    assert count(program, _ATEN.linear.default) == 2
    assert count(program, _ATEN.conv2d.default) == 1


def test_an_activation_is_computed_on_the_rows_right_behind_the_layer() -> None:
    _, program = apply(PointwiseToLinear({}), Residual(), images(6, 7))
    (first, _) = program.graph.find_nodes(op="call_function", target=_ATEN.linear.default)
    (follower,) = first.users
    assert follower.target is _ATEN.hardswish.default
    assert count(program, _ATEN.hardswish_.default) == 0


def test_an_activation_of_a_value_that_is_used_elsewhere_stays_where_it_is() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.convolution(x)
            return y, y.relu()

    modified, program = apply(PointwiseToLinear({}), Twice(), images(6, 7))
    assert modified
    (relu,) = program.graph.find_nodes(op="call_function", target=_ATEN.relu.default)
    assert relu.args[0].target is _ATEN.permute.default


def test_behind_channels_last_the_rows_are_there_already() -> None:
    module = nn.Sequential(nn.Conv2d(8, 8, 3), Residual())
    program = export(module, images(6, 7))
    assert ChannelsLast({}).call(program)
    assert PointwiseToLinear({}).call(program)
    x = images(6, 7)
    with torch.no_grad(), torch.profiler.profile() as profile:
        got = program.module()(x)
        torch.testing.assert_close(got, module(x), rtol=1e-4, atol=1e-5)
    copies = sum(one.count for one in profile.key_averages() if one.key == "aten::clone")
    # The image's on its way in, and the result's, which has its own layout back.
    assert copies == 2


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(8, 4, 1, stride=2),
        nn.Conv2d(8, 4, 1, padding=1),
        nn.Conv2d(8, 4, 1, groups=2),
        nn.Conv2d(8, 4, 3),
    ],
)
def test_other_convolutions_are_left_alone(module: nn.Module) -> None:
    assert not apply(PointwiseToLinear({}), module, images(6, 7))[0]


def test_an_image_of_one_point_is_another_pass_s() -> None:
    assert not apply(PointwiseToLinear({}), nn.Conv2d(8, 4, 1), images(1, 1))[0]


class Pointwise(nn.Module):
    """A convolution by points, whose result is looked at in several ways."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(8, 4, 1)


class Viewed(Pointwise):
    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(x)
        return y.view(y.shape[0], -1)  # type: ignore[no-any-return]


def test_a_view_of_the_image_still_works() -> None:
    assert apply(PointwiseToLinear({}), Viewed(), images(6, 7))[0]


class Returned(Pointwise):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.convolution(x)
        return y, y.relu().flatten(2), y.tanh().sum((0, 3))


def test_outputs_lie_in_memory_as_before() -> None:
    modified, program = apply(PointwiseToLinear({}), Returned(), images(6, 7))
    assert modified
    assert all(made.is_contiguous() for made in program.module()(images(6, 7)))


class WritesAfterView(Pointwise):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.convolution(x)
        row = y.flatten(1)
        y.mul_(2.0)
        return y, row


class WritesThroughView(Pointwise):
    def forward(self, x: Tensor) -> Tensor:
        y = self.convolution(x)
        y.flatten(1).mul_(2.0)
        return y  # type: ignore[no-any-return]


@pytest.mark.parametrize("module", [WritesAfterView(), WritesThroughView()])
def test_a_graph_that_writes_what_a_view_shows_is_left_alone(module: nn.Module) -> None:
    assert not apply(PointwiseToLinear({}), module, images(6, 7))[0]
