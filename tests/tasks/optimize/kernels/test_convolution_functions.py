"""Convolutions by functions of our own: packages compute what torch does, at every level."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.optimize.kernels import depthwise, pointwise
from handoff.tasks.optimize.kernels.activations import FUNCTIONS, NO_ACTIVATION
from handoff.tasks.verify.loading import open_package
from tests.tasks.optimize.kernels.levels import LEVELS, compile_for_level

pytestmark = pytest.mark.compile
LAST = torch.channels_last
ACTIVATIONS = (NO_ACTIVATION, *range(len(FUNCTIONS)))


def activations_of(place: int) -> tuple[int, ...]:
    """Return all for the first layer of a kind, and for each other one none and another one."""
    return ACTIVATIONS if place == 0 else (NO_ACTIVATION, ACTIVATIONS[1 + place % len(FUNCTIONS)])


class Point(NamedTuple):
    """A pointwise layer: channels that go in and come out, and the image's sizes."""

    depth: int
    channels: int
    height: int
    width: int
    is_added: bool = False
    has_bias: bool = True


# One block of output channels, some, a whole group, groups and a rest; blocks that overlap; less
# than one; fewer points than are computed at once, as many, more than share the cache.
POINTS = (
    Point(3, 16, 1, 3), Point(24, 40, 9, 7, is_added=True), Point(17, 129, 3, 2, has_bias=False),
    Point(64, 64, 14, 14), Point(33, 17, 2, 3, is_added=True, has_bias=False),
    Point(8, 144, 5, 5, is_added=True), Point(200, 100, 1, 1), Point(9, 1, 4, 3, is_added=True),
    Point(20, 11, 7, 1, is_added=True), Point(300, 260, 12, 10), Point(40, 7, 6, 1),
    Point(1, 18, 3, 4), Point(1100, 65, 3, 5, is_added=True), Point(1, 1, 3, 4, is_added=True),
)  # fmt: skip


class Deep(NamedTuple):
    """A depthwise layer: channels, the image's sizes, and the kernel's and its steps' by axes."""

    channels: int
    height: int
    width: int
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    has_bias: bool = True


# Kernels that are larger than the image, strides that skip, no padding, more than the kernel needs.
DEEP = (
    Deep(16, 9, 11), Deep(23, 8, 13, stride=(2, 2)), Deep(40, 7, 7, (5, 5), padding=(2, 2)),
    Deep(32, 2, 2, (5, 5), padding=(2, 2), has_bias=False),
    Deep(17, 12, 20, (3, 5), (1, 3), (0, 4), (2, 1)), Deep(24, 6, 1, (3, 1), padding=(1, 0)),
    Deep(48, 10, 16, (7, 7), (1, 1), (3, 3)), Deep(16, 9, 9, padding=(0, 0), has_bias=False),
    Deep(16, 5, 30, (3, 3), (2, 1), (4, 4), (1, 2)), Deep(19, 4, 5, (1, 1), padding=(0, 0)),
    Deep(16, 9, 3, (9, 1), (1, 4), (4, 0)),
)  # fmt: skip


class Pointwise(nn.Module):
    def __init__(self, place: int) -> None:
        super().__init__()
        self.point, self.activations = (point := POINTS[place]), activations_of(place)
        source = torch.Generator().manual_seed(point.channels)
        weight = torch.randn(point.channels, point.depth, generator=source) / point.depth**0.5
        self.register_buffer("weight", pointwise.pack(weight))
        self.register_buffer("bias", torch.randn(point.channels, generator=source))

    def arguments(self, image: Tensor, added: Tensor) -> tuple[Tensor | None, ...]:
        bias = self.bias if self.point.has_bias else None
        return (
            image.contiguous(memory_format=LAST), self.weight, bias,
            added.contiguous(memory_format=LAST) if self.point.is_added else None,
        )  # type: ignore[return-value]  # fmt: skip

    def forward(self, image: Tensor, added: Tensor) -> list[Tensor]:
        given = self.arguments(image, added)
        if self.point.width > 1:
            operator = torch.ops.handoff.pointwise
            return [operator(*given, self.point.channels, which) for which in self.activations]
        # The same function by its other name.
        first, weight, bias, more = given
        rows = [one if one is None else one[..., 0].transpose(1, 2) for one in (first, more)]
        made = [
            torch.ops.handoff.rows(rows[0], weight, bias, rows[1], self.point.channels, which)
            for which in self.activations
        ]
        return [one.transpose(1, 2)[..., None] for one in made]


class Depthwise(nn.Module):
    def __init__(self, place: int) -> None:
        super().__init__()
        self.deep, self.activations = (deep := DEEP[place]), activations_of(place)
        source = torch.Generator().manual_seed(deep.channels)
        taps = torch.randn(*deep.kernel, deep.channels, generator=source)
        self.register_buffer("taps", taps / len(taps))
        self.register_buffer("bias", torch.randn(deep.channels, generator=source))

    def arguments(self, image: Tensor) -> tuple[object, ...]:
        bias = self.bias if self.deep.has_bias else None
        sides = (self.deep.stride, self.deep.padding, self.deep.dilation)
        return (image, self.taps, bias, *itertools.chain(*sides))

    def forward(self, image: Tensor) -> list[Tensor]:
        given = self.arguments(image.contiguous(memory_format=LAST))
        return [torch.ops.handoff.depthwise(*given, which) for which in self.activations]


class Functions(nn.Module):
    """All of them in one package, which is compiled once for a level."""

    def __init__(self) -> None:
        super().__init__()
        self.pointwise = nn.ModuleList(map(Pointwise, range(len(POINTS))))
        self.depthwise = nn.ModuleList(map(Depthwise, range(len(DEEP))))

    def forward(
        self, images: list[Tensor], added: list[Tensor], deep: list[Tensor]
    ) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
        return (
            [one(*given) for one, *given in zip(self.pointwise, images, added, strict=True)],
            [one(image) for one, image in zip(self.depthwise, deep, strict=True)],
        )


Inputs = tuple[list[Tensor], list[Tensor], list[Tensor]]


def draw(batch: int) -> Inputs:
    source = torch.Generator().manual_seed(batch)

    def images(channels: int, height: int, width: int) -> Tensor:
        return 3 * torch.randn(batch, channels, height, width, generator=source)

    return (
        [images(one.depth, one.height, one.width) for one in POINTS],
        [images(one.channels, one.height, one.width) for one in POINTS],
        [images(one.channels, one.height, one.width) for one in DEEP],
    )


@pytest.fixture(scope="module", params=LEVELS)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    shapes = ([batch] * len(POINTS), [batch] * len(POINTS), [batch] * len(DEEP))
    folder = tmp_path_factory.mktemp("package")
    return compile_for_level(request.param, Functions(), draw(3), shapes, folder)


def run(package: Path, inputs: Inputs) -> tuple[list[Tensor], list[Tensor]]:
    """Return the results of pointwise layers, and of depthwise ones, in one row each."""
    results = list(open_package(package)(inputs))  # type: ignore[arg-type] # in lists
    number = sum(len(activations_of(place)) for place in range(len(POINTS)))
    return results[:number], results[number:]


def wanted(inputs: Inputs) -> tuple[list[Tensor], list[Tensor]]:
    """Return what they are in float64."""
    functions = Functions().double()
    points: list[Tensor] = []
    for layer, image, added in zip(functions.pointwise, *inputs[:2], strict=True):
        assert isinstance(layer, Pointwise)
        given: Any = layer.arguments(image.double(), added.double())
        channels = layer.point.channels
        points += [pointwise.composition(*given, channels, which) for which in layer.activations]  # type: ignore[call-arg]
    deep: list[Tensor] = []
    for layer, image in zip(functions.depthwise, inputs[2], strict=True):
        assert isinstance(layer, Depthwise)
        given = layer.arguments(image.double())
        deep += [depthwise.composition(*given, which) for which in layer.activations]  # type: ignore[call-arg]
    return points, deep


@pytest.mark.parametrize("batch", [1, 2, 9])
def test_layers_compute_what_torch_does(batch: int, package: Path) -> None:
    inputs = draw(batch)
    for made, want in zip(run(package, inputs), wanted(inputs), strict=True):
        for got, expected in zip(made, want, strict=True):
            torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=2e-5)
            assert got.is_contiguous(memory_format=LAST)


def test_nan_and_infinities_become_what_torch_makes_of_them(package: Path) -> None:
    inputs = draw(2)
    for image in itertools.chain(*inputs):
        flat = image[1].flatten()
        flat[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])[: len(flat)]
        image[1] = flat.view_as(image[1])
    for made, want in zip(run(package, inputs), wanted(inputs), strict=True):
        for got, expected in zip(made, want, strict=True):
            assert got[0].isfinite().all(), "another image's"
            torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("size", [1e-30, 40.0, 100.0, 1e20])
def test_activations_of_small_and_of_large_numbers_are_torchs(size: float, package: Path) -> None:
    inputs = draw(1)
    for image in itertools.chain(*inputs):
        image.mul_(size)
    for made, want in zip(run(package, inputs), wanted(inputs), strict=True):
        for got, expected in zip(made, want, strict=True):
            torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=2e-5 * (1 + size))


def test_of_no_images_there_are_no_results(tmp_path: Path) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.point, self.deep = Pointwise(0), Depthwise(0)

        def forward(self, image: Tensor, deep: Tensor) -> tuple[Tensor, Tensor]:
            return self.point(image, image)[0], self.deep(deep)[0]

    batch = {0: torch.export.Dim("batch", min=0, max=64)}
    inputs = torch.randn(3, 3, 1, 3), torch.randn(3, 16, 9, 11)
    folder = compile_for_level("avx2", Layers(), inputs, (batch, batch), tmp_path)
    package = open_package(folder)
    for count in (3, 0):
        point, deep = package((inputs[0][:count], inputs[1][:count]))
        assert (point.shape, deep.shape) == ((count, 16, 1, 3), (count, 16, 9, 11))


@pytest.mark.parametrize("channels", [1, 5, 15, 16, 17, 31, 32, 64, 65, 100, 257])
def test_weights_are_the_same_when_they_are_unpacked(channels: int) -> None:
    weight = torch.randn(channels, 5)
    packed = pointwise.pack(weight)
    assert packed.numel() == -(-channels // 16) * 16 * 5
    assert torch.equal(pointwise.unpack(packed, channels), weight)


def test_eager_is_torchs_own() -> None:
    inputs = draw(2)
    functions = Functions()
    with torch.no_grad():
        points, deep = functions(*inputs)
    for made, want in zip((points, deep), wanted(inputs), strict=True):
        for got, expected in zip(itertools.chain(*made), want, strict=True):
            torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)
            assert got.is_contiguous(memory_format=LAST)
