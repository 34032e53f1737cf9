"""Contiguous linear: one product of matrices where torch would make one for each row."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch._inductor.decomposition import select_decomp_table

from handoff.tasks.optimize.passes.base import apply_pass
from handoff.tasks.optimize.passes.contiguous_linear import ContiguousLinear
from tests.tasks.optimize.passes.exporting import apply, count, export

_ATEN = torch.ops.aten
X = torch.randn(6, 5, 7, generator=torch.Generator().manual_seed(0))


class Transposed(nn.Module):
    """A linear layer on a sequence whose first two axes change places, as attention has it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.transpose(0, 1)).transpose(0, 1)  # type: ignore[no-any-return]


def test_a_transposed_input_is_copied_so_that_its_rows_are_one_matrix() -> None:
    modified, program = apply(ContiguousLinear({}), Transposed(), X)
    assert modified
    assert count(program, _ATEN.contiguous.default) == 1


def test_what_inductor_gets_is_one_product_instead_of_a_batch_of_them() -> None:
    plain, changed = export(Transposed(), X), export(Transposed(), X)
    apply_pass(ContiguousLinear({}), changed)
    table = select_decomp_table()
    assert count(plain.run_decompositions(table), _ATEN.bmm.default) == 1
    decomposed = changed.run_decompositions(table)
    assert count(decomposed, _ATEN.bmm.default) == 0
    assert count(decomposed, _ATEN.addmm.default) == 1


def test_an_input_that_lies_so_already_is_left_alone() -> None:
    assert not apply(ContiguousLinear({}), nn.Linear(7, 4), X)[0]


def test_a_matrix_is_left_alone_however_it_lies() -> None:
    assert not apply(ContiguousLinear({}), Rows(), X[:, :, 0])[0]


class Rows(nn.Module):
    """A linear layer on every second column of a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x[:, ::2])  # type: ignore[no-any-return]
