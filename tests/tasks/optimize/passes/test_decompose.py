"""Decomposing to core ATen: other operators, the same function."""

from __future__ import annotations

import torch
from torch import nn

from handoff.tasks.optimize.passes.decompose import DecomposeToCore
from tests.tasks.optimize.passes.exporting import apply, count


def test_composites_become_core_operators() -> None:
    module = nn.Sequential(nn.Linear(8, 4), nn.ReLU(inplace=True))
    modified, program = apply(DecomposeToCore({}), module, torch.randn(5, 8))
    assert modified
    assert count(program, torch.ops.aten.linear.default) == 0
    assert count(program, torch.ops.aten.addmm.default) == 1
    assert count(program, torch.ops.aten.relu_.default) == 0


def test_a_core_program_is_left_as_it_is() -> None:
    modified, _ = apply(DecomposeToCore({}), nn.ReLU(), torch.randn(5, 8))
    assert not modified
