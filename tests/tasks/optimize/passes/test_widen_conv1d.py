"""Widen conv1d: sequences as images of height one, the same values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.channels_last import ChannelsLast
from handoff.tasks.optimize.passes.widen_conv1d import WidenConv1d
from tests.tasks.optimize.passes.exporting import apply, count

_ATEN = torch.ops.aten
X = torch.randn(6, 4, 50, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "convolution",
    [
        nn.Conv1d(4, 8, 3),
        nn.Conv1d(4, 8, 3, stride=2, padding=1, bias=False),
        nn.Conv1d(4, 8, 5, dilation=2, groups=2),
        nn.Conv1d(4, 8, 3, padding="same", dilation=3),
        nn.Conv1d(4, 8, 4, padding="valid"),
        nn.Conv1d(4, 8, 1),
    ],
    ids=str,
)
def test_each_kind_of_convolution_gives_what_it_gave(convolution: nn.Conv1d) -> None:
    modified, program = apply(WidenConv1d({}), nn.Sequential(convolution, nn.ReLU()), X)
    assert modified
    wide = count(program, _ATEN.conv2d.default) + count(program, _ATEN.conv2d.padding)
    narrow = count(program, _ATEN.conv1d.default) + count(program, _ATEN.conv1d.padding)
    assert (wide, narrow) == (1, 0)
    assert program.state_dict["0.weight"].dim() == 4


def test_what_it_leaves_can_have_its_channels_last() -> None:
    net = nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3))
    _, program = apply(WidenConv1d({}), net, X)
    assert ChannelsLast({}).call(program)


def test_activations_stay_right_behind_their_layer() -> None:
    net = nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(inplace=True), nn.GELU(), nn.Conv1d(8, 8, 3))
    _, program = apply(WidenConv1d({}), net, X)
    (relu,) = program.graph.find_nodes(op="call_function", target=_ATEN.relu.default)
    (gelu,) = program.graph.find_nodes(op="call_function", target=_ATEN.gelu.default)
    assert relu.args[0].target is _ATEN.conv2d.default
    assert gelu.args[0] is relu


class Tied(nn.Module):
    """One convolution's weights used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv1d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(self.convolution(x))  # type: ignore[no-any-return]


def test_weights_that_are_used_twice_keep_their_shape() -> None:
    assert not apply(WidenConv1d({}), Tied(), X)[0]


def test_a_sequence_without_a_batch_is_left_alone() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv1d(4, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.convolution(x[0]) * x.sum()  # type: ignore[no-any-return]

    assert not apply(WidenConv1d({}), Single(), X)[0]
