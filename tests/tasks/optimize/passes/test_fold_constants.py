"""Constant folding: what no input changes is computed once, into a buffer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.base import apply_pass
from handoff.tasks.optimize.passes.fold_constants import FoldConstants
from tests.tasks.optimize.passes.exporting import apply, count, export

_ATEN = torch.ops.aten
X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


class Gated(nn.Module):
    """A gate and a mask that forward computes anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.arange(8) % 2 == 0
        return torch.where(mask, x * torch.sigmoid(self.gate) * 2.0, x)


def test_gates_and_masks_are_computed_once() -> None:
    modified, program = apply(FoldConstants({}), Gated(), X)
    assert modified
    for operator in (_ATEN.sigmoid.default, _ATEN.arange.default, _ATEN.eq.Scalar):
        assert count(program, operator) == 0
    assert "gate" not in program.state_dict, "the weight that nothing needs isn't shipped"


def test_a_folded_program_is_saved_loaded_and_runs(tmp_path: Path) -> None:
    _, program = apply(FoldConstants({}), Gated(), X)
    torch.export.save(program, tmp_path / "p.pt2")
    loaded = torch.export.load(tmp_path / "p.pt2")
    torch.testing.assert_close(loaded.module()(X), Gated.forward(_with(program), X))


def _with(program: torch.export.ExportedProgram) -> Gated:
    """Return a module that computes the same: its gate is read back from the folded one."""
    module = Gated()
    folded = next(t for t in program.state_dict.values() if t.dtype is torch.float32)
    module.gate = nn.Parameter(torch.logit(folded))
    return module


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.t())


class Drawn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(8)


class Large(nn.Module):
    """A table of 4 MiB, made of nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum() + torch.ones(1024, 1024).cumsum(0)


class Counter(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1.0)
        return x + self.count * 2.0


@pytest.mark.parametrize("module", [Transposed(), Drawn(), Large(), Counter()])
def test_views_random_numbers_large_results_and_written_buffers_stay(module: nn.Module) -> None:
    assert not apply_pass(FoldConstants({}), export(module, X))


class ConstantOutput(Gated):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return x * 2.0, torch.sigmoid(self.gate)


def test_an_output_that_is_constant_stays_a_result() -> None:
    modified, program = apply(FoldConstants({}), ConstantOutput(), X)
    assert not modified
    assert count(program, _ATEN.sigmoid.default) == 1


def test_a_second_time_there_is_nothing_to_fold() -> None:
    _, program = apply(FoldConstants({}), Gated(), X)
    assert not apply_pass(FoldConstants({}), program)
