"""What people see of findings, on terminals of any width and in logs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Literal

import click
import pytest

from handoff.artifacts.release.evidence import Finding
from handoff.infra.terminal.console import print_findings
from tests.terminal import written_to_terminal

_WHERE = "module.py:12 in the_forward_of_a_model_with_a_very_long_name_that_nobody_breaks_apart"
_PRINT = f"""
from handoff.artifacts.release.evidence import Finding
from handoff.infra.terminal.console import print_findings
print_findings([Finding("random-draw", "unsound", "draws " * 30, "take it " * 30, "{_WHERE}")])
"""


def test_a_log_gets_a_line_for_each_sentence() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", _PRINT], capture_output=True, text=True, check=True
    ).stdout
    assert len(printed.splitlines()) == 2


@pytest.mark.parametrize(
    ("code", "severity", "lines"),
    [
        ("lineage-incomplete", "note", 1), ("lineage-incomplete", "unsound", 2),
        ("left-out", "note", 2),
    ],
)  # fmt: skip
def test_a_note_on_where_a_delivery_comes_from_is_shown_once(
    code: str, severity: Literal["note", "unsound"], lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding(code, severity, "it lacks something", "Say it")
    print_findings([finding])
    assert len(capsys.readouterr().out.splitlines()) == 2
    print_findings([finding], again=True)
    again = capsys.readouterr().out
    assert len(again.splitlines()) == lines
    assert code in again


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_terminal_gets_lines_of_its_width_beside_the_margin(columns: int) -> None:
    asked = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    written = written_to_terminal([sys.executable, "-c", _PRINT], asked)
    lines = click.unstyle(written).splitlines()
    assert lines[0].startswith("  unsound ")
    assert all(line.startswith(" " * 10) for line in lines[1:])
    # What is longer than a line stays whole, to be copied.
    long = [line for line in lines if len(line) > columns]
    assert all("the_forward_of" in line for line in long)
    assert sum(_WHERE.rsplit(maxsplit=1)[-1] in line for line in lines) == 1
    assert sum(line.count("draws") for line in lines) == 30
