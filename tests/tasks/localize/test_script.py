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
from handoff.tasks.localize.messages import FaultyNode
from handoff.tasks.localize.script import _comment, repeats
from handoff.tasks.localize.verdict import describe


@pytest.mark.parametrize(
    "text",
    ['"""\nimport os', "x\rimport os", "x\fimport os", "x\u2028import os", "x\0y", "\\\nimport os"],
)
def test_a_hostile_line_stays_a_comment(text: str) -> None:
    lines = _comment(describe(FaultyNode("mul", "aten.mul.Tensor", "module.py:3", text)))
    assert ast.parse("\n".join(lines)).body == []
    assert all(line.startswith("# ") for line in lines)


@given(st.text())
def test_any_line_stays_a_comment(text: str) -> None:
    lines = _comment(f"node, {text}")
    assert ast.parse("\n".join(lines)).body == []
    assert all(line.startswith("# ") and line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("written", "runs"), [("int kernel_0 = 1;", True), ('int kernel_0 = system("id");', False)]
)
def test_what_a_script_lets_inductor_write_is_read_before_it_goes_on(
    written: str, runs: bool, tmp_path: Path
) -> None:
    script = tmp_path / "repeat.py"
    script.write_text(
        "import sys\nfrom torch._inductor import codecache\n"
        f"codecache.write({written!r}, 'cpp')\nprint('the fault shows')\nsys.exit(1)\n"
    )
    job = SimpleNamespace(recipe=Recipe(), folder=tmp_path, target=native_cpu_target())
    trials: Any = SimpleNamespace(job=job, notes=[], left_s=300.0, spend=lambda: None)
    assert repeats(trials, script) == runs
    assert ("system" in (tmp_path / "script.log").read_text()) != runs
