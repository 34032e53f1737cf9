"""Int8 rows: tables at a quarter of their size, each row on its own scale, looked up the same."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.base import apply_pass
from handoff.tasks.optimize.passes.quantize_tables import QuantizeTables
from tests.tasks.optimize.passes.exporting import count, export

_ATEN = torch.ops.aten
IDS = torch.randint(50, (6, 7), generator=torch.Generator().manual_seed(0))


class Shops(nn.Module):
    """One table that is looked up twice, with a padding row, rows of unlike sizes, and another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items, self.kinds = nn.Embedding(50, 16, padding_idx=0), nn.Embedding(9, 16)
        with torch.no_grad():
            self.items.weight.mul_(torch.logspace(-6, 6, 50)[:, None])

    def forward(self, ids: Tensor) -> Tensor:
        return self.items(ids) + self.items(ids.flip(1)) + self.kinds(ids % 9)  # type: ignore[no-any-return]


def test_rows_become_int8_with_scales_of_their_own() -> None:
    program = export(Shops(), IDS)
    before = sum(t.nbytes for t in program.state_dict.values())
    assert apply_pass(QuantizeTables({}), program)
    assert sorted(program.state_dict) == [
        "items_weight_int8", "items_weight_scale", "kinds_weight_int8", "kinds_weight_scale",
    ]  # fmt: skip
    assert sum(t.nbytes for t in program.state_dict.values()) < 0.32 * before
    with torch.no_grad():
        got, want = program.module()(IDS), Shops()(IDS)
        rows = Shops().items(torch.arange(50))
    assert got.dtype is torch.float32
    # Half a step of the largest row that a sum is of.
    largest = torch.stack([rows[one].abs().amax(-1) for one in (IDS, IDS.flip(1))]).amax(0)
    assert bool(((got - want).abs() <= 1.01 / 127 * largest[..., None] + 0.03).all())
    assert not torch.equal(got, want)


def test_a_padding_row_stays_zeros() -> None:
    program = export(Shops(), IDS)
    assert apply_pass(QuantizeTables({}), program)
    assert not program.state_dict["items_weight_int8"][0].any()


class TiedHead(Shops):
    """What is looked up and multiplied with would be there twice."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.items(ids).mean(1) @ self.items.weight.T + self.kinds(ids % 9).sum()  # type: ignore[no-any-return]


def test_a_table_that_something_else_uses_is_left_as_it_is() -> None:
    program = export(TiedHead(), IDS)
    assert apply_pass(QuantizeTables({}), program)
    assert program.state_dict["items.weight"].dtype is torch.float32
    assert program.state_dict["kinds_weight_int8"].dtype is torch.int8
    assert count(program, _ATEN.embedding.default) == 3


def test_without_tables_there_is_nothing_to_do() -> None:
    program = export(nn.Linear(4, 2), torch.randn(3, 4))
    assert not apply_pass(QuantizeTables({}), program)
