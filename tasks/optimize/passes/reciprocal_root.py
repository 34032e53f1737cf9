"""Compute the power of minus a half as what it is: a reciprocal square root."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.base import NodePass

_ATEN = torch.ops.aten
_ROOTS: dict[Any, torch._ops.OpOverload] = {
    _ATEN.pow.Tensor_Scalar: _ATEN.rsqrt.default,
    _ATEN.pow_.Scalar: _ATEN.rsqrt_.default,
}


class ReciprocalRoot(NodePass[ExportedProgram]):
    """Call `rsqrt` for the power of -0.5.

    Before: `y = pow(x, -0.5)`. After: `y = rsqrt(x)`. Eager computes the one as the other
    (`pow_tensor_scalar_kernel` in ATen's PowKernel.cpp); Inductor does so for 0.5 alone, and calls
    the general power for each element: a quarter of the time of a graph network that normalizes by
    degrees. No value changes from eager's. Whole numbers are left alone.
    """

    name: ClassVar[str] = "reciprocal-root"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def find(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the powers of minus a half."""
        return [
            node for node in program.graph.nodes
            if node.target in _ROOTS
            and node.args[1:] == (-0.5,)
            and isinstance(base := node.args[0], torch.fx.Node)
            and base.meta["val"].is_floating_point()
        ]  # fmt: skip

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Change the call's target, and leave the exponent out."""
        del program
        node.target = _ROOTS[node.target]
        node.args = node.args[:1]
