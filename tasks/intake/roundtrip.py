"""Compares the code of the rebuilt graph with the code that was delivered.

Equality of the two syntax trees shows that nothing was misread, whatever torch's writer of code
may come to write in a later version.
"""

from __future__ import annotations

import ast
from pathlib import Path

import torch.fx

from handoff.tasks.intake.refusal import refuse
from handoff.tasks.intake.values import MODULE


def check_round_trip(module: torch.fx.GraphModule, path: Path) -> None:
    """Raise `DeliveryUnreadable` unless `module` writes the forward that `path` holds."""
    check_same_forward(module, path.read_text(encoding="utf-8"))


def check_same_forward(module: torch.fx.GraphModule, text: str) -> None:
    """Raise `DeliveryUnreadable` unless `module` writes the forward that `text` holds."""
    delivered = _statements(ast.parse(text))
    rebuilt = _statements(ast.parse(module.graph.python_code("self").src))
    for line, statement in delivered:
        ours = rebuilt.pop(0)[1] if rebuilt else "nothing"
        if statement != ours:
            raise _refuse(statement, ours, line)
    if rebuilt:
        raise _refuse("the end", rebuilt[0][1], 0)


def _refuse(delivered: str, ours: str, line: int) -> Exception:
    return refuse(
        f"{MODULE} can't be rebuilt exactly",
        expected=f"a line that torch {torch.__version__} writes again as it stands",
        got=f"{delivered} against {ours}",
        where=f"{MODULE}:{line}" if line else MODULE,
    )


def _statements(tree: ast.AST) -> list[tuple[int, str]]:
    """Return line and normal form of each statement of forward, its signature first."""
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "forward"
    ]
    forward = functions[-1]
    for argument in forward.args.args:
        argument.annotation = None
    found = [(forward.lineno, ast.unparse(forward.args))]
    for statement in forward.body:
        match statement:
            case ast.Assign(value=ast.Constant(value=None)):
                continue
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                plain: ast.stmt = ast.copy_location(ast.Assign([target], value), statement)
            case _:
                plain = statement
        found.append((statement.lineno, ast.unparse(plain)))
    return found
