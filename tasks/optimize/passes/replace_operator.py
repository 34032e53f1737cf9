"""Replace one ATen operator by another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch.export import ExportedProgram

from handoff.artifacts.errors import UsageProblem
from handoff.tasks.optimize.passes.base import Pass, PassBroken


class ReplaceOperator(Pass[ExportedProgram]):
    """Call another operator with the same arguments, wherever one is called.

    Before: `y = aten.relu.default(x)`. After: `y = aten.leaky_relu.default(x)` (seed 000's).

    Conditions: both are ATen operators that return one tensor, and the new one can be called with
    the arguments that the old one is given. A replacement that changes the outputs beyond the
    tolerance has to be marked `intended` in the recipe; the changed model is then the reference.
    """

    name: ClassVar[str] = "replace-operator"
    level: ClassVar[Literal["fx", "aten"]] = "aten"
    parameters: ClassVar[Mapping[str, str]] = {
        "old": "the operator to replace, such as relu.default",
        "new": "the operator to call instead, such as leaky_relu.default",
    }

    def call(self, program: ExportedProgram) -> bool:
        """Change the target of every call; arguments stay as they are."""
        old, new = find_operator(self.given["old"]), find_operator(self.given["new"])
        calls = [node for node in program.graph.nodes if node.target is old]
        for node in calls:
            _require_callable(new, node)
            node.target = new
        return bool(calls)

    def ensures(self, program: ExportedProgram) -> None:
        """Raise `PassBroken` if a call of the old operator is left."""
        old = find_operator(self.given["old"])
        if any(node.target is old for node in program.graph.nodes):
            raise PassBroken(f"{self.name} left a call of {old}")


def find_operator(name: str) -> torch._ops.OpOverload:
    """Return the ATen operator `name` (`relu.default`); raise `UsageProblem` for another name."""
    packet, _, overload = name.removeprefix("aten.").partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    if not isinstance(found, torch._ops.OpOverload):
        raise UsageProblem(
            "the recipe names an operator that torch doesn't have",
            expected="an ATen operator with its overload, such as relu.default",
            got=name[:80],
            remedy="Look it up in torch.ops.aten",
        )
    return found


def _require_callable(operator: torch._ops.OpOverload, node: torch.fx.Node) -> None:
    schema = operator._schema
    known = [argument.name for argument in schema.arguments]
    needed = [argument.name for argument in schema.arguments if not argument.has_default_value()]
    missing = [name for name in needed[len(node.args) :] if name not in node.kwargs]
    unknown = [name for name in node.kwargs if name not in known[len(node.args) :]]
    returns = [str(value.type) for value in schema.returns]
    if missing or unknown or len(node.args) > len(known) or returns != ["Tensor"]:
        keywords = f" and the keywords {', '.join(node.kwargs)}" if node.kwargs else ""
        raise UsageProblem(
            f"{operator} can't stand for {node.target}",
            expected=f"an operator that can be called with {len(node.args)} arguments{keywords}, "
            "and returns one tensor",
            got=str(schema),
            remedy="Choose another operator in the recipe",
        )
