"""What a delivery says gets into the script as a comment, and as nothing else."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import native_cpu_target
from handoff.tasks.localize import script
from handoff.tasks.localize.messages import FaultyNode
from handoff.tasks.localize.script import _comment_lines, shows_fault
from handoff.tasks.localize.verdict import describe


@pytest.mark.parametrize(
    "text",
    ['"""\nimport os', "x\rimport os", "x\fimport os", "x\u2028import os", "x\0y", "\\\nimport os"],
)
def test_a_hostile_line_stays_a_comment(text: str) -> None:
    lines = _comment_lines(describe(FaultyNode("mul", "aten.mul.Tensor", "module.py:3", text)))
    assert ast.parse("\n".join(lines)).body == []
    assert all(line.startswith("# ") for line in lines)


@given(st.text())
def test_any_line_stays_a_comment(text: str) -> None:
    lines = _comment_lines(f"node, {text}")
    assert ast.parse("\n".join(lines)).body == []
    assert all(line.startswith("# ") and line.isprintable() for line in lines)


def some_trials(folder: Path) -> Any:
    job = SimpleNamespace(recipe=Recipe(), folder=folder, target=native_cpu_target())
    return SimpleNamespace(job=job, notes=[], left_s=300.0, spend=lambda: None)


def test_what_a_script_lets_inductor_write_is_read_before_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "repeat.py").write_text(
        "import sys\nfrom torch._inductor import codecache\n"
        "codecache.write('int kernel_0 = 1;', 'cpp')\nprint('it goes on')\n"
        "codecache.write('int kernel_0 = system(\"id\");', 'cpp')\nprint('the fault shows')\n"
        "sys.exit(1)\n"
    )
    assert not shows_fault(some_trials(tmp_path), tmp_path / "repeat.py")
    output = (tmp_path / "script.log").read_text()
    assert "it goes on" in output
    assert "system" in output
    assert "the fault shows" not in output.splitlines()


@pytest.mark.parametrize(
    ("last", "code", "shows"),
    [("the fault shows", 1, True), ("the fault shows", 0, False), ("something else", 1, False)],
)
def test_a_fault_shows_where_the_script_says_so_last_and_ends_so(
    last: str, code: int, shows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without what reads Inductor's texts, whose import takes many seconds.
    bare = "import runpy, sys\nrunpy.run_path(sys.argv[1], run_name='__main__')"
    monkeypatch.setattr(script, "_READ_FIRST", bare)
    (tmp_path / "repeat.py").write_text(f"import sys\nprint({last!r})\nsys.exit({code})\n")
    assert shows_fault(some_trials(tmp_path), tmp_path / "repeat.py") == shows
