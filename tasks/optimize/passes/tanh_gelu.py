"""Call one operator for a GELU that is written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.fx
from torch import Tensor
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.pattern import PatternPass
from handoff.tasks.optimize.passes.state import add_call, copy_metadata, replace_node

_ATEN = torch.ops.aten


class TanhGelu(PatternPass):
    """Call `gelu` for its approximation by a hyperbolic tangent, written out.

    Before: `y = 0.5 * x * (1.0 + tanh(0.79788 * (x + 0.044715 * x ** 3.0)))`, as the first of the
    language models had it. After: `y = gelu(x, approximate="tanh")`, which compilers have a layer's
    own kernel compute. A view between the layer and it is taken afterwards.

    Conditions: a floating-point tensor, and those numbers.
    """

    name: ClassVar[str] = "tanh-gelu"
    level: ClassVar[Literal["fx", "aten"]] = "aten"
    operator: ClassVar[torch._ops.OpOverload] = _ATEN.gelu.default
    constants: ClassVar[Mapping[str, Any]] = {"approximate": "tanh"}

    def call(self, program: ExportedProgram) -> bool:
        """Replace what is found, and take views that stand between it and a layer afterwards."""
        modified = super().call(program)
        for node in program.graph.find_nodes(op="call_function", target=self.operator):
            view = node.args[0]
            if modified and view.target is _ATEN.view.default and len(view.users) == 1:
                _exchange(program, view, node)
        return modified

    @staticmethod
    def pattern(self: Tensor) -> Tensor:  # noqa: PLW0211 - its name
        """Return the approximation (D. Hendrycks and K. Gimpel, *GELUs*, 2016)."""
        cubed = _ATEN.mul.Tensor(_ATEN.pow.Tensor_Scalar(self, 3.0), 0.044715)
        angle = _ATEN.mul.Tensor(_ATEN.add.Tensor(self, cubed), 0.7978845608028654)
        raised = _ATEN.add.Tensor(_ATEN.tanh.default(angle), 1.0)
        result: Tensor = _ATEN.mul.Tensor(_ATEN.mul.Tensor(self, 0.5), raised)
        return result


def _exchange(program: ExportedProgram, view: torch.fx.Node, activation: torch.fx.Node) -> None:
    """Let a view that only an activation takes be one of the activation's result."""
    graph, (source, *sizes) = view.graph, view.args
    with graph.inserting_before(activation):
        early = add_call(graph, activation.target, (source, *activation.args[1:]))
        early.kwargs = activation.kwargs
        result = add_call(graph, view.target, (early, *sizes))
    copy_metadata(early, activation)
    copy_metadata(result, activation)
    replace_node(program, activation, result)
    graph.erase_node(view)
