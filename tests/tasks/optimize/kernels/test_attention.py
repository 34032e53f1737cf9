"""The attention operator: the C++ function in a package computes what torch's attention does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from handoff.tasks.compile.packages import extract_library
from handoff.tasks.compile.reading.instructions import find_instruction_sets
from handoff.tasks.verify.loading import open_package
from tests.tasks.optimize.kernels.levels import LEVELS, compile_for_level

pytestmark = pytest.mark.compile
HEADS = 3


class Attention(nn.Module):
    """Attention as models write it: heads out of one row, and joined again."""

    def __init__(
        self, depth: int, dtype: torch.dtype = torch.float32, *, is_own: bool, is_masked: bool
    ) -> None:
        super().__init__()
        self.depth, self.dtype, self.is_own, self.is_masked = depth, dtype, is_own, is_masked

    def forward(self, x: Tensor, others: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            rows.to(self.dtype).unflatten(2, (HEADS, self.depth)).transpose(1, 2)
            for rows in (x * 2, others + 1, others - 1)
        )
        given = mask if self.is_masked else None
        if self.is_own:
            made: Tensor = torch.ops.handoff.attention(query, key, value, given, 0.2)
        else:
            query, key, value = query.float(), key.float(), value.float()
            made = scaled_dot_product_attention(query, key, value, given, scale=0.2)
        return made.transpose(1, 2).flatten(2).float()


def draw(batch: int, length: int, keys: int, depth: int) -> tuple[Tensor, Tensor, Tensor]:
    source = torch.Generator().manual_seed(batch + length)
    x, others = (torch.randn(batch, n, HEADS * depth, generator=source) for n in (length, keys))
    # Of one length all queries have the same mask, as published encoders give it.
    mask = torch.randn(batch, 1, 1 if length == 5 else length, keys, generator=source)
    mask[:, :, -1] = -torch.inf
    return x, others, mask


class OtherWays(nn.Module):
    """Keys whose numbers lie apart, values of another size that do, and a mask for all heads.

    Both are given as one tensor, whose values have 32 numbers.
    """

    def __init__(self, dtype: torch.dtype, *, is_own: bool) -> None:
        super().__init__()
        self.dtype, self.is_own = dtype, is_own

    def forward(self, query: Tensor, both: Tensor, mask: Tensor) -> Tensor:
        query, both, given = query.to(self.dtype), both.to(self.dtype), mask[0]
        key, value = both[:, :, :-32].transpose(2, 3), both[:, :, -32:].transpose(2, 3)
        if self.is_own:
            made: Tensor = torch.ops.handoff.attention(query, key, value, given, 0.4)
            return made.float()
        query, key, value = query.float(), key.float(), value.float()
        return scaled_dot_product_attention(query, key, value, given, scale=0.4)


DTYPES = (torch.float32, torch.bfloat16)
# What results may differ by: bfloat16 rounds weights and results to eight bits.
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
SIZES = [
    (sizes, is_masked, dtype)
    for dtype in DTYPES
    for sizes, is_masked in (
        ((61, 61, 64), False),  # a block that isn't full, and rows of keys that overlap
        ((68, 30, 16), False),  # two vectors of queries behind a whole block
        ((9, 130, 80), True),  # columns beyond those that registers hold at once
        ((3, 2, 16), True),  # fewer keys than are multiplied at once
        ((50, 37, 32), True),  # a mask's keys in squares, and those beyond them
        ((5, 20, 16), True),  # a mask that all queries share
    )
]


class All(nn.Module):
    """Every case beside the others, so that a level's package is compiled once."""

    def __init__(self, *, is_own: bool) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(
            Attention(sizes[-1], dtype, is_own=is_own, is_masked=is_masked)
            for sizes, is_masked, dtype in SIZES
        )
        self.attentions.extend(OtherWays(dtype, is_own=is_own) for dtype in DTYPES)

    def forward(self, given: list[tuple[Tensor, ...]]) -> list[Tensor]:
        return [one(*inputs) for one, inputs in zip(self.attentions, given, strict=True)]


def run(package: Path, given: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return open_package(package)((given,))  # type: ignore[arg-type] # inputs in a list


def draw_all(batch: int) -> list[tuple[Tensor, ...]]:
    source = torch.Generator().manual_seed(batch)
    others = [
        tuple(
            torch.randn(shape, generator=source)
            for shape in ((batch, HEADS, 5, depth), (batch, HEADS, depth + 32, 11), (batch, 5, 11))
        )
        for depth in (7, 8)
    ]
    return [*(draw(batch, *sizes) for sizes, _, _ in SIZES), *others]


@pytest.fixture(scope="module", params=LEVELS)
def package(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases in a package for a level."""
    batch, example = torch.export.Dim("batch", min=1, max=64), draw_all(6)
    shapes = ([({0: batch},) * 3] * len(example),)
    folder = tmp_path_factory.mktemp("package")
    return compile_for_level(request.param, All(is_own=True), (example,), shapes, folder)


def test_a_package_for_a_level_holds_its_instructions(package: Path, tmp_path: Path) -> None:
    extract_library(package, tmp_path / "model.so")
    used = find_instruction_sets(tmp_path / "model.so")
    assert ("avx512f" in used) == package.parent.name.startswith("avx512")
    assert ("avx512_bf16" in used) == (package.parent.name == "avx512-bf16")


@pytest.mark.parametrize("case", range(len(SIZES)))
def test_a_package_attends_as_torch_does_for_any_batch_and_special_values(
    case: int, package: Path
) -> None:
    sizes, is_masked, dtype = SIZES[case]
    torchs = Attention(sizes[-1], dtype, is_own=False, is_masked=is_masked)
    close = CLOSE[dtype]
    for batch in (1, 5, 64):
        given = draw_all(batch)
        got = run(package, given)[case]
        torch.testing.assert_close(got, torchs(*given[case]), rtol=close, atol=close)
        assert not is_masked or not got[:, -1].any(), "a row that may look at nothing is zeros"
    for special in (torch.nan, torch.inf):
        for place in (0, 1):
            given = draw_all(2)
            given[case][place][1, 1, 3] = special
            got = run(package, given)[case]
            assert torch.equal(got.isnan(), torchs(*given[case]).isnan())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_package_reads_keys_values_and_masks_however_they_lie(
    dtype: torch.dtype, package: Path
) -> None:
    close, place = CLOSE[dtype], len(SIZES) + DTYPES.index(dtype)
    for batch in (1, 4):
        given = draw_all(batch)
        want = OtherWays(dtype, is_own=False)(*given[place])
        torch.testing.assert_close(run(package, given)[place], want, rtol=close, atol=close)


def test_eager_is_torchs_attention_with_the_heads_of_a_place_beside_each_other() -> None:
    given = draw(2, 5, 7, 16)
    own, torchs = (Attention(16, is_own=is_own, is_masked=True)(*given) for is_own in (True, False))
    assert torch.equal(own, torchs)
    query = torch.randn(2, HEADS, 5, 16)
    made = torch.ops.handoff.attention(query, query, query, None, 0.25)
    assert made.transpose(1, 2).is_contiguous()


def test_eager_keeps_the_precision_that_passes_are_compared_in() -> None:
    query, mask = torch.randn(2, HEADS, 5, 16, dtype=torch.float64), torch.randn(5, 5).double()
    got = torch.ops.handoff.attention(query, query, query, mask, 0.25)
    assert torch.equal(got, scaled_dot_product_attention(query, query, query, mask, scale=0.25))
