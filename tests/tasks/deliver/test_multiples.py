"""Models that run at multiples of a number alone, as those do that halve an image and double it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from handoff.artifacts.delivery.signature import Dimension
from handoff.artifacts.errors import DeliveryUnsound
from handoff.tasks.deliver.multiples import multiple_of
from handoff.tasks.deliver.step import deliver
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.inspect.step import run

SIZES = Dimension(1, 1024)


@pytest.mark.parametrize(("number", "size"), [(2, 16), (4, 16), (16, 64), (14, 42), (32, 32)])
def test_the_smallest_number_is_found_at_whose_multiples_a_model_runs(
    number: int, size: int
) -> None:
    assert multiple_of(lambda asked: asked % number == 0, size, SIZES) == number


def test_one_below_a_multiple_may_run_as_well() -> None:
    assert multiple_of(lambda size: size % 4 in (0, 3), 16, SIZES) == 4


def test_a_model_that_runs_at_each_size_or_at_one_has_no_such_number() -> None:
    assert multiple_of(lambda size: size > 0, 16, SIZES) == 0
    assert multiple_of(lambda size: size == 16, 16, SIZES) == 0
    assert multiple_of(lambda size: size >= 16, 16, Dimension(1, 20)) == 0
    assert multiple_of(lambda size: size >= 16, 16, SIZES) == 0


class Halves(nn.Module):
    """A U-Net of two levels: `[N, 1, H, W]` to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, image: Tensor) -> Any:
        wide = self.first(image).relu()
        deep = self.second(functional.max_pool2d(wide, 2)).relu()
        return self.last(torch.cat([wide, self.joined(self.up(deep), wide)], 1))

    def joined(self, up: Tensor, wide: Tensor) -> Tensor:
        return up


class Interpolates(Halves):
    def joined(self, up: Tensor, wide: Tensor) -> Tensor:
        return functional.interpolate(up, size=(wide.shape[2], wide.shape[3]))


DYNAMIC = {"image": {0: "batch", 2: "height", 3: "width"}}


def deliver_it(model: nn.Module, folder: Path, smallest: int) -> Path:
    torch.manual_seed(0)
    sizes = {"height": (smallest, 64), "width": (smallest, 64)}
    inputs = (torch.randn(2, 1, 16, 16),)
    deliver(model, inputs, folder, name="toy", dynamic=DYNAMIC, dimensions=sizes)
    return folder


def test_a_model_that_halves_an_image_is_refused_with_what_helps(tmp_path: Path) -> None:
    with pytest.raises(DeliveryUnsound) as caught:
        deliver_it(Halves(), tmp_path / "toy", 1)
    assert "runs where height is a multiple of 2, and height takes every" in caught.value.remedy
    assert "interpolate(a, size=(b.shape[2], b.shape[3]))" in caught.value.remedy


def test_where_the_sizes_that_deliver_tries_run_inspect_finds_it(tmp_path: Path) -> None:
    folder = deliver_it(Halves(), tmp_path / "toy", 12)
    found = [one for one in run(TraceabilityJob(folder)).findings if one.severity == "unsound"]
    assert {one.code for one in found} == {"size-baked-in"}
    assert "height is a multiple of 2, and height takes every size from 12" in found[0].remedy


def test_doing_what_the_refusal_says_is_sound_at_all_sizes(tmp_path: Path) -> None:
    folder = deliver_it(Interpolates(), tmp_path / "toy", 4)
    assert run(TraceabilityJob(folder, exports=True)).verdict == "sound"
