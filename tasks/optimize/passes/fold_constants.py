"""Compute once, now, what doesn't depend on the inputs."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.base import Pass, PassBroken
from handoff.tasks.optimize.passes.purity import is_view, pure_nodes
from handoff.tasks.optimize.passes.state import (
    add_buffer,
    drop_unused_state,
    lifted_tensors,
    replace_node,
)

# A result may be this large, or as large as the weights that it is made from.
_FREE_BYTES = 1 << 20


class FoldConstants(Pass[ExportedProgram]):
    """Replace what is computed from weights and numbers alone by a buffer that holds the result.

    Before: `gate = sigmoid(W)`, `y = x * gate`. After: `y = x * folded`, `folded = sigmoid(W)`.

    Conditions: the calls are functions of their arguments, which nothing writes to in place; the
    result is a tensor of at most 1 MiB, or no larger than the weights it is made from; a mere view
    of a weight is left alone, because it costs nothing and its copy would.
    """

    name: ClassVar[str] = "fold-constants"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def call(self, program: ExportedProgram) -> bool:
        """Compute every such call, and keep those results that others need."""
        found = _find_foldable(program)
        for node, value in found.items():
            # A copy of its own: folding must not make two results share memory.
            buffer = add_buffer(program, "folded", value.detach().clone())
            replace_node(program, node, buffer)
        if found:
            program.graph.eliminate_dead_code()
            drop_unused_state(program)
        return bool(found)

    def ensures(self, program: ExportedProgram) -> None:
        """Raise `PassBroken` if something that could be folded is left."""
        left = [node.name for node in _find_foldable(program)]
        if left:
            raise PassBroken(f"{self.name} left {', '.join(left)}")


def _find_foldable(program: ExportedProgram) -> dict[torch.fx.Node, torch.Tensor]:
    """Return the calls to fold, and their results."""
    constant = _constant_nodes(program)
    tensors = lifted_tensors(program)
    values: dict[torch.fx.Node, Any] = {
        node: tensors[node.name]
        for node in program.graph.find_nodes(op="placeholder") if node.name in tensors
    }  # fmt: skip
    weights = {node: {node} for node in values}
    found: dict[torch.fx.Node, torch.Tensor] = {}
    with torch.no_grad():
        for node in constant:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            assert callable(node.target)
            value = values[node] = node.target(*args, **kwargs)
            weights[node] = set().union(*(weights[n] for n in node.all_input_nodes))
            weight_bytes = sum(values[weight].nbytes for weight in weights[node])
            if (
                isinstance(value, torch.Tensor)
                and _is_worth_folding(node, constant)
                and value.nbytes <= max(_FREE_BYTES, weight_bytes)
            ):
                found[node] = value
    return found


def _constant_nodes(program: ExportedProgram) -> dict[torch.fx.Node, None]:
    """Return the calls that depend on no input, in the order of the graph."""
    pure = pure_nodes(program.graph)
    tensors = lifted_tensors(program)
    weights = {node for node in program.graph.find_nodes(op="placeholder") if node.name in tensors}
    constant: dict[torch.fx.Node, None] = {}
    for node in program.graph.nodes:
        if node in pure and all(n in weights or n in constant for n in node.all_input_nodes):
            constant[node] = None
    return constant


def _is_worth_folding(node: torch.fx.Node, constant: dict[torch.fx.Node, None]) -> bool:
    """Return whether a call computes something that a call that stays, or a view, makes use of."""
    if is_view(node) or any(user.op == "output" for user in node.users):
        return False
    return any(user not in constant or is_view(user) for user in node.users)
