"""Models that run at multiples of a number alone, as those do that halve an image and double it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from handoff.artifacts.delivery.contract import read_contract
from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.artifacts.errors import DeliveryUnsound, UsageProblem
from handoff.infra.commands.input_flags import format_limits, parse_limits
from handoff.tasks.deliver.multiples import find_multiple
from handoff.tasks.deliver.options import require_limits
from handoff.tasks.deliver.step import deliver
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.inspect.step import run
from handoff.tasks.optimize.capture import capture

SIZES = Dimension(1, 1024)


@pytest.mark.parametrize(("number", "size"), [(2, 16), (4, 16), (16, 64), (14, 42), (32, 32)])
def test_the_smallest_number_is_found_at_whose_multiples_a_model_runs(
    number: int, size: int
) -> None:
    assert find_multiple(lambda asked: asked % number == 0, size, SIZES) == number


def test_one_below_a_multiple_may_run_as_well() -> None:
    assert find_multiple(lambda size: size % 4 in (0, 3), 16, SIZES) == 4


def test_a_model_that_runs_at_each_size_or_at_one_has_no_such_number() -> None:
    assert find_multiple(lambda size: size > 0, 16, SIZES) == 0
    assert find_multiple(lambda size: size == 16, 16, SIZES) == 0
    assert find_multiple(lambda size: size >= 16, 16, Dimension(1, 20)) == 0
    assert find_multiple(lambda size: size >= 16, 16, SIZES) == 0


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


def deliver_it(model: nn.Module, folder: Path, smallest: int, *step: int) -> Path:
    torch.manual_seed(0)
    sides: Any = (smallest, 64, *step)
    sizes = {"height": sides, "width": sides}
    inputs = (torch.randn(2, 1, 16, 16),)
    deliver(model, inputs, folder, name="toy", dynamic=DYNAMIC, dimensions=sizes)
    return folder


def test_a_model_that_halves_an_image_is_refused_with_what_helps(tmp_path: Path) -> None:
    with pytest.raises(DeliveryUnsound) as caught:
        deliver_it(Halves(), tmp_path / "toy", 1)
    assert "runs where height is a multiple of 2" in caught.value.remedy
    assert "dimensions={'height': (2, 64, 2)}" in caught.value.remedy


def test_where_the_sizes_that_deliver_tries_run_inspect_finds_it(tmp_path: Path) -> None:
    folder = deliver_it(Halves(), tmp_path / "toy", 12)
    found = [one for one in run(TraceabilityJob(folder)).findings if one.severity == "unsound"]
    assert {one.code for one in found} == {"size-baked-in"}
    assert "dimensions={'height': (12, 64, 2)}" in found[0].remedy


def test_doing_what_the_refusal_says_is_sound_at_all_sizes(tmp_path: Path) -> None:
    folder = deliver_it(Halves(), tmp_path / "toy", 2, 2)
    assert run(TraceabilityJob(folder, exports=True)).verdict == "sound"
    limits = read_contract(folder).dimensions["height"]
    assert (str(limits), 34 in limits, 35 in limits) == ("2 to 64 in steps of 2", True, False)


def test_a_model_that_brings_what_it_joins_to_one_size_takes_every_size(tmp_path: Path) -> None:
    folder = deliver_it(Interpolates(), tmp_path / "toy", 4)
    assert run(TraceabilityJob(folder, exports=True)).verdict == "sound"


def test_what_can_not_be_captured_for_every_size_says_at_whose_multiples_it_can() -> None:
    """What runs at the size that it is captured with may hold for multiples alone."""
    signature = ModelSignature(
        (TensorSpec("image", "float32", ("batch", 1, "height", 8)),), (),
        {"height": Dimension(4, 64), "batch": Dimension(1, 8)},
    )  # fmt: skip
    with pytest.raises(DeliveryUnsound) as caught:
        capture(Halves(), signature)
    assert "Declare the sizes that forward is made for" in caught.value.remedy
    assert "'height': (4, 64, 2)" in caught.value.remedy
    steps = replace(
        signature, dimensions={**signature.dimensions, "height": Dimension(4, 64, "", 2)}
    )
    capture(Halves(), steps)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 40))
def test_what_is_left_of_a_range_in_multiples_holds_each_of_them(
    low: int, more: int, number: int
) -> None:
    limits = Dimension(low, low + more)
    multiples = [size for size in range(low, low + more + 1) if size % number == 0]
    left = limits.restrict_to_multiples(number)
    if left is None:
        assert not multiples
        return
    assert [size for size in range(low + more + 2) if size in left] == multiples
    assert left.second in left
    assert left.nearest(3) in left
    assert all(size in left for size in left.among(0, 1, 2, 5, 7))
    assert parse_limits(format_limits(left)) == left


@pytest.mark.parametrize("limits", [(20, 512, 16), (16, 500, 16), (16, 512, 0), (3, 9, 16)])
def test_multiples_that_do_not_divide_the_ends_are_reported_with_what_to_write(
    limits: tuple[int, ...],
) -> None:
    with pytest.raises(UsageProblem, match="no range of multiples") as caught:
        require_limits({"height": limits}, ["height"])
    written = ast.literal_eval(
        caught.value.remedy.partition("dimensions=")[2].partition("}")[0] + "}"
    )
    require_limits(written, ["height"])
