"""Functions of our own for images: packages compute what torch does, at every level."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.optimize.kernels.activations import FUNCTIONS
from handoff.tasks.optimize.kernels.squeeze_excite import NO_GRID, composition
from handoff.tasks.verify.loading import open_package
from tests.tasks.optimize.kernels.levels import LEVELS, compile_for_level

pytestmark = pytest.mark.compile
LAST = torch.channels_last
DTYPES = (torch.float32, torch.bfloat16)
# Fewer points than a vector has numbers, as many, and some more; two to four channels.
PICTURES = ((2, 5, 3), (3, 4, 8), (4, 9, 7), (3, 70, 61))
# Channels that a vector divides, that half of one does, and that none does; rows of weights.
BLOCKS = ((16, 4, 9, 5), (72, 18, 3, 7), (129, 9, 2, 2))
_ACTIVATIONS, _GATES = (0, 1, 2, 5), (3, 4)
# On a grid that clips both ends, too.
ON_GRIDS = [(0, 3, 0.005, 101), (2, 4, 0.005, 0)]
HOW = [(*which, *NO_GRID) for which in itertools.product(_ACTIVATIONS, _GATES)] + ON_GRIDS


class Pictures(nn.Module):
    """Every picture, in both precisions."""

    def forward(self, pictures: list[Tensor]) -> list[Tensor]:
        return [
            torch.ops.handoff.channels_last(picture, dtype is torch.bfloat16)
            for picture in pictures
            for dtype in DTYPES
        ]


class Block(nn.Module):
    """A squeeze-and-excite block of a precision."""

    def __init__(self, channels: int, rows: int, dtype: torch.dtype, *, has_biases: bool) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(channels)
        sizes = ((rows, channels), (rows,), (rows, channels), (channels,))
        tensors = [torch.randn(size, generator=source) / size[-1] ** 0.5 for size in sizes]
        for name, tensor in zip(("squeeze", "first", "excite", "second"), tensors, strict=True):
            self.register_buffer(name, tensor.to(dtype))
        self.has_biases, self.dtype = has_biases, dtype

    def weights(self) -> list[Tensor | None]:
        biases = (self.first, self.second) if self.has_biases else (None, None)
        return [self.squeeze, biases[0], self.excite, biases[1]]  # type: ignore[list-item]

    def forward(self, image: Tensor) -> list[Tensor]:
        image = image.to(self.dtype).contiguous(memory_format=LAST)
        return [
            torch.ops.handoff.squeeze_excite(image, *self.weights(), *how).float() for how in HOW
        ]


class Functions(nn.Module):
    """All of them in one package, which is compiled once for a level."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures = Pictures()
        self.blocks = nn.ModuleList(
            Block(channels, rows, dtype, has_biases=dtype is torch.float32)
            for channels, rows, *_ in BLOCKS
            for dtype in DTYPES
        )

    def forward(
        self, pictures: list[Tensor], images: list[Tensor]
    ) -> tuple[list[Tensor], list[list[Tensor]]]:
        given = [image for image in images for _ in DTYPES]
        return self.pictures(pictures), [
            block(image) for block, image in zip(self.blocks, given, strict=True)
        ]


def draw(batch: int) -> tuple[list[Tensor], list[Tensor]]:
    source = torch.Generator().manual_seed(batch)
    pictures = [torch.randn(batch, *sizes, generator=source) for sizes in PICTURES]
    images = [
        torch.randn(batch, channels, height, width, generator=source)
        for channels, _, height, width in BLOCKS
    ]
    return pictures, images


@pytest.fixture(scope="module", params=LEVELS)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    shapes = ([batch] * len(PICTURES), [batch] * len(BLOCKS))
    folder = tmp_path_factory.mktemp("package")
    return compile_for_level(request.param, Functions(), draw(3), shapes, folder)


def run(
    package: Path, pictures: list[Tensor], images: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return what the pictures became, and the blocks' results, in one row each."""
    results = open_package(package)((pictures, images))  # type: ignore[arg-type] # in lists
    number = len(PICTURES) * len(DTYPES)
    return list(results[:number]), list(results[number:])


@pytest.mark.parametrize("batch", [1, 2, 9])
def test_pictures_keep_every_number_in_the_other_layout(batch: int, package: Path) -> None:
    pictures, images = draw(batch)
    made, _ = run(package, pictures, images)
    for result, (picture, dtype) in zip(made, itertools.product(pictures, DTYPES), strict=True):
        assert torch.equal(result, picture.to(dtype))
        assert result.is_contiguous(memory_format=LAST)


@pytest.mark.parametrize("batch", [1, 2, 9])
def test_blocks_compute_what_torch_does(batch: int, package: Path) -> None:
    pictures, images = draw(batch)
    _, made = run(package, pictures, images)
    results = iter(made)
    blocks = Functions().blocks
    for block, image in zip(blocks, (i for i in images for _ in DTYPES), strict=True):
        assert isinstance(block, Block)
        close = 1e-5 if block.dtype is torch.float32 else 1e-2
        wide = [None if one is None else one.double() for one in block.weights()]
        for how in HOW:
            want = composition(image.to(block.dtype).double(), *wide, *how)  # type: ignore[arg-type,call-arg]
            got = next(results).double()
            if how in ON_GRIDS:
                steps = (got - want.double()).abs()
                assert steps.max() <= 1, "what lies nearly between two steps"
                assert steps.mean() < 100 * close / block.dtype.itemsize**2
                assert [float(end) for end in got.aminmax()] == [0.0, 255.0]
            else:
                torch.testing.assert_close(got, want, rtol=close, atol=close)
    assert next(results, None) is None


def test_nan_and_infinities_stay_what_they_are(package: Path) -> None:
    pictures, images = draw(2)
    for picture in pictures:
        picture[0, 1, 2, 1], picture[1, 1, 2, 2] = torch.nan, -torch.inf
        # The largest float32, which bfloat16 rounds up to infinity; a NaN of ones; ties.
        patterns = [0x7F7FFFFF, 0x7FFFFFFF, 0x3F808000, 0x3F818000, 0x3F80FFFF, 1]
        picture[1, 0].view(-1)[: len(patterns)] = torch.tensor(patterns, dtype=torch.int32).view(
            torch.float32
        )
    for image in images:
        image[1, 3, 1, 1] = torch.nan
    made, gated = run(package, pictures, images)
    for result, (picture, dtype) in zip(made, itertools.product(pictures, DTYPES), strict=True):
        # Below the least normal number may be 0: the processor's own rounding makes that of it.
        tiny = torch.finfo(torch.float32).tiny if dtype is torch.bfloat16 else 0.0
        want = torch.where(picture.abs() < tiny, 0.0, picture).to(dtype)
        got = torch.where(result.abs() < tiny, 0.0, result)
        assert torch.equal(got.nan_to_num(nan=5.0), want.nan_to_num(nan=5.0))
    for result, how in zip(gated, itertools.cycle(HOW), strict=False):
        assert not result[0].isnan().any()
        if how in ON_GRIDS:
            assert not result[1].any(), "uint8 has no NaN"
        else:
            assert result[1].isnan().all(), "the means of all points reach each"


def test_eager_is_torchs_own() -> None:
    image = torch.randn(2, 16, 3, 3)
    block = Block(16, 4, torch.float32, has_biases=True)
    for how in HOW:
        got = torch.ops.handoff.squeeze_excite(image, *block.weights(), *how)
        torch.testing.assert_close(got, composition(image, *block.weights(), *how))  # type: ignore[arg-type,call-arg]
        assert got.dtype is (torch.uint8 if how in ON_GRIDS else torch.float32)
        assert got.is_contiguous(memory_format=LAST)
    picture = torch.randn(2, 3, 5, 7)
    for dtype in DTYPES:
        got = torch.ops.handoff.channels_last(picture, dtype is torch.bfloat16)
        assert torch.equal(got, picture.to(dtype))
        assert got.is_contiguous(memory_format=LAST)
    # What passes are compared in keeps its precision.
    wide = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    assert torch.equal(torch.ops.handoff.channels_last(wide, half=False), wide)
    assert len(FUNCTIONS) == len(_ACTIVATIONS) + len(_GATES)
