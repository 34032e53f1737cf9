"""What the passes' tests share: an exported module, a pass applied to it, its outputs compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from handoff.tasks.optimize.passes.base import Pass, apply_pass


def export(module: nn.Module, *inputs: torch.Tensor) -> ExportedProgram:
    """Export `module`, whose inputs share a dynamic batch in axis 0."""
    batch = Dim("batch", min=1, max=64)
    with torch.no_grad():
        shapes = tuple({0: batch} for _ in inputs)
        return torch.export.export(module.eval(), inputs, dynamic_shapes=shapes)


def images(*spatial: int) -> torch.Tensor:
    """Return five images of eight channels."""
    return torch.randn(5, 8, *spatial, generator=torch.Generator().manual_seed(0))


def apply(
    chosen: Pass[Any], module: nn.Module, *inputs: torch.Tensor
) -> tuple[bool, ExportedProgram]:
    """Apply a pass to the exported module, and compare the outputs at two sizes."""
    program = export(module, *inputs)
    smaller = tuple(tensor[:3] for tensor in inputs)
    with torch.no_grad():
        want = [module(*[t.clone() for t in given]) for given in (inputs, smaller)]
        modified = apply_pass(chosen, program)
        for given, expected in zip((inputs, smaller), want, strict=True):
            got = program.module()(*[t.clone() for t in given])
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    return modified, program


def count(program: ExportedProgram, operator: object) -> int:
    """Return how often the program calls an operator."""
    return sum(node.target is operator for node in program.graph.nodes)
