"""What a table knows of a graph's operators, and the script that repeats it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import nn

from handoff.artifacts.conformance.table import ConformanceRow
from handoff.artifacts.recipe.target import CpuTarget, Isa, native_cpu_target
from handoff.tasks.conformance.known_faults import fault_finding, find_known_faults
from handoff.tasks.conformance.lookup import calls_of
from handoff.tasks.conformance.script import repeating_script
from tests.artifacts.conformance.conformance_samples import (
    ADD,
    AMAX,
    right_add,
    table,
    toolchain,
    wrong_amax,
)
from tests.limits import LIMIT_S
from tests.processors import LEVELS


class Largest(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.amax(-1) + 1


def test_a_graph_is_read_as_operators_with_their_dtypes() -> None:
    program = torch.export.export(Largest(), (torch.zeros(2, 16, dtype=torch.int8),))
    assert calls_of(program) == {AMAX, "aten.add.Tensor(int8)"}


def test_an_operator_that_is_wrong_in_one_dtype_is_reported_for_that_dtype_alone() -> None:
    (known,) = find_known_faults(table(), {AMAX, ADD})
    assert (known.operator, known.name) == ("amax", "amax of int8")
    assert known.inputs[0].values[:3] == (-1, -2, -3)
    assert find_known_faults(table(), {"aten.amax.default(float32)", ADD}) == ()


def test_overloads_of_an_operator_count_as_one_where_their_dtypes_are_the_same() -> None:
    whole = "aten.amax.out(int8, int8)"
    assert len(find_known_faults(table(), {whole})) == 1
    assert (
        find_known_faults(table(), {"aten.amax.out(int8, float32)", "aten.amin.default(int8)"})
        == ()
    )


def test_an_overload_that_rounds_is_another_operator_than_a_plain_division() -> None:
    floors = "aten.div.Tensor_mode(float32)"
    rounding = replace(
        ConformanceRow("div floor", "float32", "wrong", "it is off by 1"), calls=(floors,)
    )
    assert find_known_faults(table(rounding), {"aten.div.Tensor(float32)"}) == ()
    assert len(find_known_faults(table(rounding), {"aten.div.Scalar_mode(float32)"})) == 1


def test_a_fault_of_several_operators_is_reported_where_all_of_them_are() -> None:
    showing = wrong_amax().showing
    assert showing is not None
    both = replace(wrong_amax(), showing=replace(showing, calls=(AMAX, ADD)))
    assert find_known_faults(table(both), {AMAX}) == ()
    assert len(find_known_faults(table(both), {AMAX, ADD, "aten.relu.default(float32)"})) == 1


def test_an_operator_that_crashes_is_reported_too() -> None:
    row = ConformanceRow("add", "float32", "crashes", "signal SIGFPE", calls=(ADD,))
    (fault,) = find_known_faults(table(row), {ADD})
    assert "crashing" in fault.description


def test_the_finding_names_values_results_and_reports() -> None:
    (fault,) = find_known_faults(table(), {AMAX, ADD})
    finding = fault_finding(fault, {})
    assert (finding.code, finding.severity) == ("known-wrong-operator", "note")
    for part in (AMAX, "cpu-avx512", "torch 2.15.0", "-1, -2, -3", "got 0, expected -1", "191499"):
        assert part in finding.message
    assert "handoff conformance --show amax" in finding.remedy


def test_the_finding_says_which_case_asked_for_it_or_that_none_could() -> None:
    (fault,) = find_known_faults(table(), {AMAX})
    case = f"batch=7 what {fault.name} gets wrong"
    assert case in fault_finding(fault, {fault.name: case}).remedy
    assert "isn't affected" in fault_finding(fault, {}).remedy


def test_of_what_no_input_was_kept_there_is_no_script() -> None:
    showing = wrong_amax().showing
    assert showing is not None
    large = replace(wrong_amax(), showing=replace(showing, inputs=()))
    assert repeating_script(table(), large) == ""
    assert repeating_script(table(), right_add()) == ""


def repeat(target: CpuTarget, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of a wrong maximum for a target."""
    script = folder / "repeat.py"
    of = replace(table(), toolchain=toolchain(target=target.slug))
    script.write_text(repeating_script(of, wrong_amax(rows=3)), encoding="utf-8")
    return subprocess.run(
        [sys.executable, script], cwd=folder, capture_output=True, text=True, check=False,
        timeout=LIMIT_S, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip


@pytest.mark.compile
def test_the_script_repeats_it_with_torch_alone(tmp_path: Path) -> None:
    run = repeat(native_cpu_target(), tmp_path)
    assert run.returncode == 0, run.stderr
    assert "result 0:" in run.stdout
    assert "DIFFERENT" in run.stdout


def test_the_script_tells_a_processor_without_its_level_that_it_lacks_it(tmp_path: Path) -> None:
    beyond = [level for level in map(CpuTarget, get_args(Isa)) if level not in LEVELS]
    if not beyond:
        pytest.skip("this processor has every level")
    run = repeat(beyond[0], tmp_path)
    assert run.returncode == 1
    assert not run.stdout
    assert f"expected a processor for {beyond[0].slug}, got one without" in run.stderr
