"""Decompose into core ATen operators."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.base import Pass, PassBroken


class DecomposeToCore(Pass[ExportedProgram]):
    """Replace composite operators by core ATen ones, and writes in place by new tensors.

    Before: `y = linear(x, W, b)`. After: `y = addmm(b, x, permute(W))`.

    For passes that are written against the core operators, and for backends beyond Inductor, which
    does its own decomposing: the numbers are the same, the speed may not be. The decompositions are
    those of `torch.export.ExportedProgram.run_decompositions`.
    """

    name: ClassVar[str] = "decompose-to-core"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def call(self, program: ExportedProgram) -> bool:
        """Let the program become its decomposed self."""
        before = _call_targets(program)
        decomposed = program.run_decompositions()
        program.__dict__.update(decomposed.__dict__)
        return _call_targets(program) != before

    def ensures(self, program: ExportedProgram) -> None:
        """Raise `PassBroken` if an operator is left that a decomposition exists for."""
        table = torch.export.default_decompositions()
        # A dynamic size is asked for by this, however far a graph is decomposed.
        table.pop(torch.ops.aten.sym_size.int, None)
        left = [node.name for node in program.graph.nodes if node.target in table]
        if left:
            raise PassBroken(f"{self.name} left {', '.join(left)}")


def _call_targets(program: ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes]
