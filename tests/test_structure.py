"""How the code is laid out: what no linter of ours counts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("artifacts", "tasks", "flows", "infra", "examples")
MOST_LINES = 40
# Those that were longer when the rule got its test. Cut one and its line goes; none is added.
LONGER = {
    "artifacts/mlflow/registry.py:list_release",
    "artifacts/release/statement.py:release_statement",
    "flows/releasing.py:make_release",
    "infra/prefect/automations.py:automations",
    "tasks/registry/assemble.py:assemble",
    "tasks/deliver/step.py:deliver",
    "tasks/intake/source.py:_read_init",
    "tasks/optimize/kernels/attention_pooling_triton.py:attention_pooling_kernel",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            yield node


def count_lines(function: Function) -> int:
    """Count from `def` to the end, without the docstring."""
    first = function.body[0]
    docstring = first if ast.get_docstring(function, clean=False) is not None else None
    return _lines(function) - (_lines(docstring) if docstring else 0)


def _lines(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_a_functions_lines_are_counted_without_its_docstring_and_decorators() -> None:
    source = '@cache\ndef one(\n    a: int,\n) -> int:\n    """Say.\n\n    More."""\n    return a\n'
    assert [count_lines(function) for function in functions(source)] == [4]
    assert [count_lines(function) for function in functions("def two(): ...\n")] == [1]


def test_no_function_is_longer_than_forty_lines_but_those_that_were() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{function.name}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for function in functions(path.read_text(encoding="utf-8"))
        if count_lines(function) > MOST_LINES
    }
    assert sorted(found - LONGER) == [], f"cut it into parts of {MOST_LINES} lines at most"
    assert sorted(LONGER - found) == [], "no longer that long: take it off the list"
