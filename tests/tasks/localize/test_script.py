"""What a delivery says gets into the script as a comment, and as nothing else."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.tasks.localize.messages import FaultyNode
from handoff.tasks.localize.script import _comment
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
