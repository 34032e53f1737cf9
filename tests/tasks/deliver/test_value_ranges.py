"""Ranges that are read off a run: tables, masks, hashes, lengths, and what can't be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from handoff.tasks.deliver.ranges.reading import RangeReading, read_ranges, state_of, watch_values

INT64 = (-(2.0**63), 2.0**63)
LOWEST = float(torch.finfo(torch.float32).min)


class Model(nn.Module):
    """Tables of 50, 30 and 130 rows, and whatever `compute` does with them."""

    def __init__(self, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.user = nn.Embedding(50, 4)
        self.item = nn.Embedding(30, 4)
        self.flat = nn.Embedding(130, 4)
        self.bag = nn.EmbeddingBag(40, 4)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("offsets", torch.tensor([0, 50, 80, 100]))
        self.register_buffer("buckets", torch.tensor([50, 30, 20, 30]))
        self.compute = compute

    def forward(self, *inputs: Tensor) -> Any:
        return self.compute(self, *inputs)


def ids(rows: int = 3) -> Tensor:
    return torch.arange(3, 3 + rows * 4).reshape(rows, 4)


def read(compute: Callable[..., Any], *inputs: Tensor) -> list[RangeReading | None]:
    model = Model(compute).eval()
    return list(read_ranges(watch_values(model, inputs, state_of(model)), inputs))


def range_of(compute: Callable[..., Any], *inputs: Tensor) -> tuple[float, float, str]:
    found = read(compute, *inputs)[-1]
    assert found is not None
    return found.low, found.high, found.source


LOOKED_UP: dict[str, tuple[Callable[..., Any], tuple[float, float]]] = {
    "embedding": (lambda m, x: m.user(x), (0, 49)),
    "functional embedding with padding": (
        lambda m, x: functional.embedding(x, m.user.weight, padding_idx=0), (0, 49)),
    "bag": (lambda m, x: m.bag(x), (0, 39)),
    "index": (lambda m, x: m.user.weight[x], (0, 49)),
    "index beside another": (
        lambda m, x: m.user.weight[x[:, 0], torch.arange(3)], (0, 49)),
    "index_select": (lambda m, x: m.user.weight.index_select(0, x.flatten()), (0, 49)),
    "gather": (
        lambda m, x: m.user.weight.t().gather(1, x.t()[:, :1].expand(4, 3)), (0, 49)),
    "one hot": (lambda m, x: functional.one_hot(x, 40).float(), (0, 39)),
    "reshape": (lambda m, x: m.user(x.reshape(-1)), (0, 49)),
    "transpose and slice": (lambda m, x: m.user(x.t()[1:, :2]), (0, 49)),
    "an offset": (lambda m, x: m.user(x + 2), (-2, 47)),
    "an offset taken away": (lambda m, x: m.user(x - 1), (1, 50)),
    "from the other end": (lambda m, x: m.user(49 - x), (0, 49)),
    "casts": (lambda m, x: m.user(x.int().long().float().long()), (0, 49)),
    "doubled": (lambda m, x: m.flat(2 * x), (0, 64)),
    "two uses": (lambda m, x: m.user(x) + m.item(x), (0, 29)),
    "one table for two parts": (
        lambda m, x: m.user(torch.cat([x[:, :2], x[:, 2:]], 0)), (0, 49)),
    "split and stacked": (
        lambda m, x: m.user(torch.stack([part.squeeze(1) for part in x.split(1, 1)])), (0, 49)),
    "shifted and padded": (
        lambda m, x: m.user(functional.pad(x[:, :-1], (1, 0), value=2)), (0, 49)),
    "unknown ids replaced": (lambda m, x: m.user(torch.where(x < 0, 0, x)), (0, 49)),
    "padding compared with zero": (lambda m, x: m.user(x) * (x != 0).unsqueeze(-1), (0, 49)),
    "some columns": (lambda m, x: m.user(x[:, 1]), (0, 49)),
    "sorted": (lambda m, x: m.user(x.sort(dim=1).values), (0, 49)),
    "quotient and remainder": (lambda m, x: m.user(x // 30) * m.item(x % 30), (0, 1499)),
    "the last step": (lambda m, x: m.flat.weight[:36].view(3, 12, 4)[torch.arange(3), x[:, 0] - 3],
                      (3, 14)),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKED_UP)
def test_ids_are_what_their_table_holds(name: str) -> None:
    compute, expected = LOOKED_UP[name]
    assert range_of(compute, ids()) == (*expected, "table")


def test_each_of_two_inputs_in_one_table_has_its_own_offset() -> None:
    found = read(lambda m, x, y: m.user(torch.cat([x, y + 5], 1)), ids(), ids())
    assert [(one.low, one.high) for one in found if one] == [(0, 49), (-5, 44)]


def test_a_table_is_named_as_the_model_names_it() -> None:
    (found,) = read(lambda m, x: m.user(x) + m.item(x), ids())
    assert found is not None
    assert found.text == "table user of 50 rows and table item of 30 rows"


def test_columns_of_different_tables_get_the_narrowest_and_it_is_said() -> None:
    (found,) = read(lambda m, x: m.user(x[:, 0]) + m.item(x[:, 1]), ids())
    assert found is not None
    assert (found.low, found.high, found.narrowed) == (0, 29, True)
    assert "the narrowest column's" in found.text


def test_columns_whose_example_holds_more_get_the_widest_and_it_is_said() -> None:
    wide = ids()
    wide[0, 0] = 45
    (found,) = read(lambda m, x: m.user(x[:, 0]) + m.item(x[:, 1]), wide)
    assert found is not None
    assert (found.low, found.high, found.widened) == (0, 49, True)


def test_features_in_one_table_by_offsets_are_columns_of_different_sizes() -> None:
    (found,) = read(lambda m, x: m.flat(x + m.offsets), ids())
    assert found is not None
    assert (found.low, found.high, found.narrowed) == (0, 29, True)


HASHED: dict[str, Callable[..., Any]] = {
    "remainder": lambda m, x: m.user(x % 50),
    "multiplied": lambda m, x: m.user((x * 2654435761) % 50),
    "mixed bits": lambda m, x: m.user((x ^ (x >> 3)) % 50),
    "low bits": lambda m, x: m.user(x & 31),
    "each column by its own": lambda m, x: m.flat(x % m.buckets + m.offsets),
    "clamped": lambda m, x: m.user(x.clamp(0, 49)),
    "remainder and padding": lambda m, x: m.user(x % 50) * (x != 0).unsqueeze(-1),
}


@pytest.mark.parametrize("name", HASHED)
def test_what_is_made_to_fit_its_table_may_be_any_number(name: str) -> None:
    assert range_of(HASHED[name], ids()) == (*INT64, "type")


def test_two_ids_that_are_hashed_together_may_be_any_numbers() -> None:
    found = read(lambda m, x, y: m.user((31 * x + y) % 50), ids(), ids())
    assert [(one.low, one.high) for one in found if one] == [INT64, INT64]


def test_what_is_clamped_from_below_has_the_tables_end_above() -> None:
    assert range_of(lambda m, x: m.user(x.clamp(min=0)), ids()) == (INT64[0], 49, "table")


def test_a_hash_with_more_buckets_than_rows_is_not_read() -> None:
    assert range_of(lambda m, x: m.item(x % 50), ids()) == (3, 14, "example")


MASKS: dict[str, Callable[..., Any]] = {
    "compared with 0": lambda m, x, k: m.user(x).sum(-1).masked_fill(k == 0, -1e9),
    "compared with 1": lambda m, x, k: m.user(x).sum(-1).masked_fill(k != 1, -1e9),
    "more than 0": lambda m, x, k: torch.where(k > 0, m.user(x).sum(-1), 0.0),
    "as a truth": lambda m, x, k: m.user(x).sum(-1).masked_fill(~k.bool(), -1e9),
    "multiplied": lambda m, x, k: m.user(x) * k.unsqueeze(-1),
    "a mean over it": lambda m, x, k: (m.user(x) * k[..., None].float()).sum(1)
    / k.sum(1, keepdim=True).clamp(min=1),
    "added to scores": lambda m, x, k: torch.softmax(
        m.user(x).sum(-1) + (1.0 - k.float()) * LOWEST, -1),
    "logically": lambda m, x, k: m.user(x).sum(-1).masked_fill(k.logical_not(), 0.0),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_was_all_ones_is_0_to_1(name: str, dtype: torch.dtype) -> None:
    assert range_of(MASKS[name], ids(), torch.ones(3, 4, dtype=dtype)) == (0, 1, "mask")


def test_what_holds_more_than_a_mask_is_none() -> None:
    weights = torch.full((3, 4), 7)
    found = range_of(lambda m, x, k: m.user(x) * k.unsqueeze(-1), ids(), weights)
    assert found == (7, 7, "example")


def test_lengths_that_are_compared_with_positions_end_at_the_last() -> None:
    lengths = torch.tensor([1, 2, 4])
    found = range_of(
        lambda m, x, n: m.user(x) * (torch.arange(4) < n[:, None]).unsqueeze(-1), ids(), lengths
    )
    assert found == (0, 4, "compared")


def test_a_limit_that_follows_a_size_is_not_read_off_one_size() -> None:
    model = Model(lambda _, x, n: x[torch.arange(len(x)), n]).eval()
    first = (torch.randn(3, 4), torch.tensor([0, 1, 2]))
    longer = (torch.randn(3, 6), torch.tensor([0, 1, 2]))
    seen = [watch_values(model, inputs, state_of(model)) for inputs in (first, longer)]
    alone, both = read_ranges(seen[0], first)[1], read_ranges(seen[0], first, seen[1])[1]
    assert alone is not None
    assert both is not None
    assert (alone.low, alone.high, alone.source) == (0, 3, "table")
    assert (both.low, both.high, both.source) == (0, 2, "example")


def test_an_image_of_bytes_may_hold_any_byte() -> None:
    image = torch.full((3, 4), 9, dtype=torch.uint8)
    assert range_of(lambda m, x: m.linear(x.float() / 255), image) == (0, 255, "type")


def test_a_count_is_what_its_example_was_and_that_is_a_guess() -> None:
    assert range_of(lambda m, x: m.linear(x.float()), ids()) == (3, 14, "example")


def test_numbers_that_nothing_reads_may_be_any() -> None:
    assert range_of(lambda m, x: torch.ones_like(x).float(), ids()) == (*INT64, "type")


def test_floats_that_are_cast_to_ids_have_the_tables_range_and_others_none() -> None:
    cast, plain = read(lambda m, x, y: m.user(x.long()) * y[..., None], ids().float(),
                       torch.randn(3, 4))  # fmt: skip
    assert cast is not None
    assert (cast.low, cast.high) == (0, 49)
    assert plain is None


def test_a_value_that_is_read_as_a_number_is_a_guess() -> None:
    assert range_of(lambda m, x: m.user.weight * x.max().item(), ids())[2] == "example"
