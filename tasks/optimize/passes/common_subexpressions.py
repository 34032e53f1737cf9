"""Compute once what is computed twice."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch.fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from handoff.tasks.optimize.passes.base import Pass, PassBroken
from handoff.tasks.optimize.passes.purity import makes_symbols, pure_nodes
from handoff.tasks.optimize.passes.state import replace_node


class CommonSubexpressions(Pass[ExportedProgram]):
    """Let calls of one operator with the same arguments share one result.

    Before: `a = relu(x)`, `b = relu(x)`, `y = a + b`. After: `a = relu(x)`, `y = a + a`.

    Conditions: the operator is a function of its arguments (no random numbers, no side effect), and
    nothing writes to its result or to an argument in place. What decides a size that is known only
    when it is computed (the mask in `x[mask]`) stays apart, and so does what has that size. Value
    numbering, as compilers do it (Cocke and Schwartz, 1970).
    """

    name: ClassVar[str] = "common-subexpressions"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def call(self, program: ExportedProgram) -> bool:
        """Replace each repetition by the first; in the order of the graph, so that chains merge."""
        mergeable = _mergeable_nodes(program.graph)
        first: dict[object, torch.fx.Node] = {}
        merged = False
        for node in list(program.graph.nodes):
            if node not in mergeable:
                continue
            earlier = first.setdefault(_value_number(node), node)
            if earlier is not node:
                replace_node(program, node, earlier)
                merged = True
        return merged

    def ensures(self, program: ExportedProgram) -> None:
        """Raise `PassBroken` if a repetition is left."""
        numbers = [_value_number(node) for node in _mergeable_nodes(program.graph)]
        if len(set(numbers)) != len(numbers):
            raise PassBroken(f"{self.name} left the same computed twice")


def _mergeable_nodes(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the nodes of which one may stand for another with the same arguments.

    Not what a call that makes a symbol is given: torch gives two calls on one mask one symbol when
    it traces the program again, where the program has two, and Inductor (2.15) then writes C++ that
    uses one before it is there.
    """
    return {
        node for node in pure_nodes(graph) if not any(makes_symbols(user) for user in node.users)
    }  # fmt: skip


def _value_number(node: torch.fx.Node) -> object:
    """Return what two calls have in common that give the same.

    Numbers go by how they are written: 0.0 and -0.0, and 1 and True, are equal and not the same.
    """
    leaves, structure = pytree.tree_flatten((node.args, dict(sorted(node.kwargs.items()))))
    arguments = tuple(
        ("node", leaf.name) if isinstance(leaf, torch.fx.Node) else (type(leaf), repr(leaf))
        for leaf in leaves
    )
    return node.target, arguments, str(structure)
