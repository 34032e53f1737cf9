"""Tables of the pages that repeat what the code says: neither may forget what the other has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from handoff.infra import settings
from handoff.infra.cli.main import EXIT_CODES, main
from handoff.infra.prefect.deployments import Schedule, deployments
from tests.docs.pages import ROOT

DOCS = ROOT / "docs"


def rows(page: Path, heading: str) -> list[list[str]]:
    """Return the cells of the tables in a page's section, a list for each row."""
    text = page.read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def names_in(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def commands(group: click.Group, above: str = "") -> Iterator[tuple[str, set[str]]]:
    """Give each command with its options."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{above}{name} ")
        else:
            yield above + name, {option for param in command.params for option in param.opts}


def test_the_page_and_the_module_tell_the_same_settings() -> None:
    on_page = set().union(*(names_in(row[0]) for row in rows(DOCS / "platform.md", "Settings")))
    documented = re.findall(r"(?m)^\| (.+?) \|", settings.__doc__ or "")
    in_module = set().union(*(names_in(cell) for cell in documented))
    assert on_page - {"HANDOFF_TORCH"} == in_module  # which is the Makefile's


def test_every_variable_that_is_read_is_told() -> None:
    read = set()
    for name in ("settings.py", "home.py"):
        tree = ast.parse((ROOT / "infra" / name).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.environ.get":
                read |= {
                    str(word.value) for word in node.args[:1] if isinstance(word, ast.Constant)
                }
    description = settings.__doc__ or ""
    assert len(read) > 10
    # The system's own, and no-color.org's, which the page's text tells of.
    assert {name for name in read if f"`{name}`" not in description} == {"TMPDIR", "NO_COLOR"}


def test_the_page_tells_every_exit_code_of_the_help() -> None:
    section = (DOCS / "platform.md").read_text(encoding="utf-8").split("## Exit codes\n")[1]
    paragraph = section.split("\n## ")[0]
    codes = re.findall(r"(?m)(?:^|; |: )(\d+) ", EXIT_CODES)
    assert len(codes) > 5
    assert [code for code in codes if not re.search(rf"(^|, |\s){code} ", paragraph)] == []


@pytest.mark.parametrize("option", ["--json", "--quiet", "--debug"])
def test_the_page_tells_which_commands_have_an_option(option: str) -> None:
    every = dict(commands(main))
    having = {name for name, options in every.items() if option in options}
    (of,) = [row[2] for row in rows(DOCS / "platform.md", "The command line") if option in row[0]]
    assert having == (set(every) - names_in(of) if of.startswith("all") else names_in(of))


def test_the_page_tells_every_deployment_with_its_pool() -> None:
    table = rows(DOCS / "automation.md", "Every night")
    lines = [" | ".join(row) for row in table]
    for one in deployments(Schedule("0 2 * * *", "UTC"), ("cuda-sm90",)):
        flow = one.flow.rpartition(".")[2].replace("_", "-")
        name, pool = (f"{flow}/{one.name}", one.pool)
        name, pool = (word.replace("cuda-sm90", "TARGET") for word in (name, pool))
        found = [line for line in lines if f"`{name}`" in line]
        assert found, name
        assert f"`{pool}`" in found[0], name


def test_the_page_names_every_folder_of_the_tests() -> None:
    page = (DOCS / "contributing.md").read_text(encoding="utf-8")
    section = page.split("## The folders\n")[1].split("\n## ")[0]
    files = [path.relative_to(ROOT).parts for path in (ROOT / "tests").rglob("*") if path.is_file()]
    folders = {parts[1] for parts in files if len(parts) > 2 and "__pycache__" not in parts}
    mirrored = {"artifacts", "tasks", "flows", "infra", "examples"}
    assert {one for one in folders - mirrored if f"`tests/{one}/" not in section} == set()
