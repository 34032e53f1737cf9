"""Channels last: other layouts, the same values, and outputs as they were."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.channels_last import ChannelsLast
from tests.tasks.optimize.passes.exporting import apply, count

_ATEN = torch.ops.aten
X = torch.randn(6, 3, 9, 9, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Two convolutions, a view that needs a layout, and an image as an output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding="same")
        self.head = nn.Linear(8 * 49, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        image = torch.relu(self.second(torch.relu(self.first(x))))
        return image, self.head(image.view(image.shape[0], -1))


def test_weights_and_images_change_their_layout_and_outputs_keep_theirs() -> None:
    modified, program = apply(ChannelsLast({}), Net(), X)
    assert modified
    for name in ("first.weight", "second.weight"):
        assert program.state_dict[name].is_contiguous(memory_format=torch.channels_last)
    assert program.module()(X)[0].is_contiguous()
    assert count(program, _ATEN.view.default) == 0


def test_pictures_of_a_few_channels_are_rearranged_by_our_own_function() -> None:
    for channels, number in ((2, 1), (4, 1), (5, 0)):
        picture = torch.randn(6, channels, 9, 9)
        modified, program = apply(ChannelsLast({}), nn.Conv2d(channels, 8, 3), picture)
        assert modified
        assert count(program, torch.ops.handoff.channels_last.default) == number


def test_a_model_that_is_laid_out_so_is_left_as_it_is() -> None:
    image = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).to(memory_format=torch.channels_last)
    assert not apply(ChannelsLast({}), image, X)[0]


class OfOneImage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x[0]).sum() + x  # type: ignore[no-any-return]


def test_an_image_without_a_batch_is_left_alone() -> None:
    assert not apply(ChannelsLast({}), OfOneImage(), X)[0]


class WritesInPlace(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        image = self.first(x)
        image.view(-1).mul_(2.0)
        return image, image.sum((1, 2, 3))


def test_a_graph_that_writes_through_views_is_left_alone() -> None:
    modified, _ = apply(ChannelsLast({}), WritesInPlace(), X)
    assert not modified


class InPlace(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        image = torch.relu_(self.first(x))
        return image, image.sum((1, 2, 3))


def test_an_activation_in_place_is_no_hindrance() -> None:
    assert apply(ChannelsLast({}), InPlace(), X)[0]


class InPlaceBeforeView(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        image = torch.relu_(self.first(x))
        points = torch.relu_(self.second(image).mean((2, 3)).unsqueeze(-1).unsqueeze(-1))
        return image * points, image.view(image.shape[0], -1)


def test_what_is_written_before_its_view_is_made_is_no_hindrance() -> None:
    modified, program = apply(ChannelsLast({}), InPlaceBeforeView(), X)
    assert modified
    torch.testing.assert_close(program.module()(X), InPlaceBeforeView()(X))


class WritesAfterView(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        image = self.first(x)
        row = image.flatten(1)
        image.mul_(2.0)
        return image, row


def test_a_graph_that_writes_what_a_view_shows_is_left_alone() -> None:
    assert not apply(ChannelsLast({}), WritesAfterView(), X)[0]


class NoImages(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


def test_a_model_without_convolutions_is_left_alone() -> None:
    assert not apply(ChannelsLast({}), NoImages(), X)[0]
