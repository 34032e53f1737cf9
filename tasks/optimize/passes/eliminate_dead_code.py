"""Drop what no output depends on."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.base import Pass, PassBroken
from handoff.tasks.optimize.passes.state import drop_unused_state


class EliminateDeadCode(Pass[ExportedProgram]):
    """Drop calls whose results nobody uses, and weights that no call uses.

    Before: `a = relu(x)`, `b = exp(x)`, `return a`. After: `a = relu(x)`, `return a`.

    Conditions: the call has no side effect: it doesn't write in place and asserts nothing. Inputs
    stay, used or not: they are the program's interface.
    """

    name: ClassVar[str] = "eliminate-dead-code"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def call(self, program: ExportedProgram) -> bool:
        """Drop them, the last ones first."""
        before = len(program.graph.nodes)
        program.graph.eliminate_dead_code()
        drop_unused_state(program)
        return len(program.graph.nodes) != before

    def ensures(self, program: ExportedProgram) -> None:
        """Raise `PassBroken` if something without use and effect is left."""
        left = [
            node.name for node in program.graph.nodes
            if node.op == "call_function" and not node.users and not node.is_impure()
        ]  # fmt: skip
        if left:
            raise PassBroken(f"{self.name} left {', '.join(left)}")
