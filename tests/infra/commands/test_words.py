"""The glossary: each title of a table or a figure that is shown can be explained, as pages do."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from handoff.infra.documenting.glossary import SECTIONS, draw_words
from handoff.infra.explaining.explanations import explanations, find_word, words
from tests.infra.commands.test_cli import assert_is_a_sentence, handoff

ROOT = Path(__file__).parents[3]
ROOMS = ("artifacts", "tasks", "flows", "infra")
# The conformance suite's tables are of operators, and explained where they are printed.
FILES = [
    path for room in ROOMS for path in (ROOT / room).rglob("*.py")
    if "conformance" not in str(path)
]  # fmt: skip
TABLES, FIGURES = ("print_table", "table"), "Figure"


def texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts in a tuple of titles, those of `*(... if ... else ...)` among them."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    # A progress bar's columns are calls, and have no titles.
    for part in (
        inner for one in parts if not isinstance(one, ast.Call) for inner in ast.walk(one)
    ):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def titles_in(tree: ast.AST) -> Iterator[str]:
    """Yield each title that the code gives a column, or a figure of the report's first screen."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple(elts=[_, *_]) as titles):
                if name.lower().endswith("columns") or name in ("_NEEDED", "_FIGURES"):
                    yield from texts(titles)
            case ast.FunctionDef(name=name) if name.endswith("_columns"):
                for part in ast.walk(node):
                    if isinstance(part, ast.Return) and part.value is not None:
                        yield from texts(part.value)
            case ast.Call(func=ast.Name(id=name), args=[_, ast.Tuple() as titles, *_]) if (
                name in TABLES
            ):
                yield from texts(titles)
            case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(title)), *_]) if (
                name == FIGURES
            ):
                yield title


def unexplained(code: str) -> list[str]:
    """Return the titles in `code` that the glossary doesn't have."""
    return sorted({title for title in titles_in(ast.parse(code)) if title and not find_word(title)})


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_title_is_explained(path: Path) -> None:
    assert unexplained(path.read_text(encoding="utf-8")) == [], "write it in words.toml"


@pytest.mark.parametrize(
    "code",
    [
        'columns = ("target", "a new one")',
        '_SOME_COLUMNS = ("target", *(["a new one"] if has_one else []))',
        'print_table("", ("a new one", "size"), rows)',
        'table("Caption", (*_NEEDED, "a new one"), rows)',
        'yield Figure("a new one", "3", "told")',
        'def some_columns():\n    return ("a new one", "")',
    ],
)
def test_a_new_title_without_an_explanation_is_found(code: str) -> None:
    assert unexplained(code) == ["a new one"]


def test_titles_are_found_at_all() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in FILES if "report" in path.parts)
    found = set(titles_in(ast.parse(code.replace("from __future__ import annotations", ""))))
    assert {"needs rtol", "RMSE to float64", "not compared", "why not", "over eager"} <= found


def test_no_word_is_explained_twice() -> None:
    names = [name.casefold() for word in words() for name in word.names]
    assert sorted(names) == sorted({*names} - {code.casefold() for code in explanations()})


@pytest.mark.parametrize("kind", SECTIONS)
def test_the_page_has_the_same_words(kind: str) -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert draw_words(kind) in page, "run 'make reference', and commit what it writes"


@pytest.mark.parametrize("asked", [("rtol needed",), ("needs", "rtol"), ("RTOL-needed",)])
def test_a_title_is_explained_however_it_is_written(asked: tuple[str, ...], tmp_path: Path) -> None:
    result = handoff("explain", *asked, home=tmp_path)
    assert result.returncode == 0
    assert "smallest rtol with which the output would be" in " ".join(result.stdout.split())
    plain = json.loads(handoff("explain", *asked, "--json", home=tmp_path).stdout)
    assert plain["names"] == ["rtol needed", "needs rtol"]


def test_a_misspelt_title_is_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    refused = handoff("explain", "yardstik", home=tmp_path)
    assert_is_a_sentence(refused, 64, "Did you mean yardstick?")
