"""How the code is laid out: what no linter of ours counts."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path

from handoff.tasks.steps import ROWS, Step

ROOT = Path(__file__).parents[1]
MOST_ENTRIES = 20
# Collections of equals, and the top of the tests, where the helpers of all rooms are.
COLLECTIONS = {
    "docs", "infra/runner", "tasks/optimize/passes", "tests",
    "tests/tasks/optimize/passes", "tests/studies/benchmarks",
}  # fmt: skip
NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ROOMS = ("artifacts", "tasks", "flows", "infra", "examples")
TREES = (*ROOMS, "docs", "tests")
# Words of ours that names of functions, classes and modules once had, each with what is said now.
COINED = {
    "told": "message, text, reasons, lines", "tell": "report_, describe_, format_", "untold": "",
    "road": "method", "lane": "worker pool", "desk": "worker pool", "site": "host",
    "beside": "what it is: the baseline, the datasets", "manners": "call patterns",
}  # fmt: skip
# Python's own: a file's position.
OF_OTHERS = {("tasks/fetch/archive.py", "tell")}


def entries() -> dict[str, set[str]]:
    """Return the names in each folder that holds code, `__init__.py` apart."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", *TREES]
    kept = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    found: dict[str, set[str]] = defaultdict(set)
    for path in map(Path, kept):
        for place in (path, *path.parents):
            if place.name not in {"", "__init__.py"} and (ROOT / path).exists():
                found[place.parent.as_posix()].add(place.name)
    del found["."]
    return found


def test_a_folder_has_at_most_twenty_entries_unless_they_are_equals() -> None:
    crowded = {folder for folder, names in entries().items() if len(names) > MOST_ENTRIES}
    assert sorted(crowded - COLLECTIONS) == [], "give what belongs together a room"
    assert sorted(COLLECTIONS - crowded) == [], "no longer that full: take it off the list"


def test_every_room_says_what_it_is_for() -> None:
    rooms = [path.parent for room in ROOMS for path in (ROOT / room).rglob("__init__.py")]
    silent = [
        room.relative_to(ROOT).as_posix()
        for room in rooms
        if not ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_names_are_the_fields_words_and_none_of_ours() -> None:
    coined = []
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = [node.name for node in nodes if isinstance(node, NAMED)]
        coined += [
            f"{file}: {name}"
            for name in (path.stem, *names)
            if words_of(name) & COINED.keys() and (file, name) not in OF_OTHERS
        ]
    assert coined == [], COINED


def test_a_word_is_found_within_names_of_either_form() -> None:
    assert words_of("_told_so") & COINED.keys()
    assert words_of("DeskOfTwo") & COINED.keys()
    assert not words_of("retell_stories") & COINED.keys()


def words_of(name: str) -> set[str]:
    """Return the words of a name in snake case or camel case, in small letters."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def test_a_step_is_declared_once() -> None:
    for column in ({row.name for row in ROWS}, {row.module for row in ROWS}, {r.job for r in ROWS}):
        assert len(column) == len(ROWS)
    declared = [
        path.relative_to(ROOT).as_posix()
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if any(_calls_step(node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    ]
    assert declared == ["tasks/steps.py"]


def _calls_step(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == Step.__name__
