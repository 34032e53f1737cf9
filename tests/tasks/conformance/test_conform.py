"""A bundle of operators, compiled and asked: the wrong one is reported, the right one passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.conformance.table import ConformanceRow
from handoff.artifacts.errors import StepCrashed
from handoff.artifacts.recipe.target import compile_variables, native_cpu_target
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.conformance.messages import ConformJob, ConformResult, Pairs, PairsJob
from handoff.tasks.conformance.running import Plan, Progress, RowStore, _ask, _ask_all

TARGET = native_cpu_target()


@pytest.mark.compile
@pytest.mark.long
def test_operators_that_torch_gets_wrong_are_reported_beside_those_that_it_gets_right(
    tmp_path: Path,
) -> None:
    # Reported publicly: 191499 (extrema of bytes), 197895 (floor division). Mended ones go here
    # when the lock gets a torch that has mended them.
    pairs = (
        "amax:int8", "amax:float32", "floor_divide:float32", "add:float32", "empty_like:float32",
        "normal.number_mean:float32",
    )  # fmt: skip
    process = StepProcess(
        ProcessPlan("conform", environment=compile_variables(TARGET)),
        tmp_path / "log",
    )
    try:
        result: ConformResult = process.run(ConformJob(TARGET, {}, pairs), limit_s=900.0)
    finally:
        process.close()
    rows = {row.pair: row for row in result.rows}
    assert [rows[pair].standing for pair in pairs] == [
        "wrong", "right", "wrong", "right", "not compiled", "not compiled",
    ]  # fmt: skip
    amax = rows["amax:int8"]
    assert amax.questions == ("one-sided, negative",)
    assert amax.showing is not None
    assert amax.showing.calls == ("aten.amax.default(int8)",)
    assert (amax.showing.got, amax.showing.inputs[0].dtype) == ("0", "int8")
    assert all(value < 0 for value in amax.showing.inputs[0].values)
    assert rows["add:float32"].asked > 40
    assert "uninitialised" in rows["empty_like:float32"].reason
    assert "random" in rows["normal.number_mean:float32"].reason


def test_the_pairs_are_those_of_pytorchs_suite_and_the_patterns(tmp_path: Path) -> None:
    process = StepProcess(ProcessPlan("list", ("compile.step",)), tmp_path / "log")
    try:
        listed: Pairs = process.run(PairsJob(TARGET, {}, "g++"), limit_s=300.0)
        one: Pairs = process.run(PairsJob(TARGET, {}, "g++", ("amax",)), limit_s=300.0)
    finally:
        process.close()
    assert len(listed.pairs) == len(set(listed.pairs)) > 4600
    assert {"amax:uint8", "pattern.half_and_back:float32"} <= set(listed.pairs)
    assert set(one.pairs) == {pair for pair in listed.pairs if pair.startswith("amax:")}
    assert listed.toolchain["target"] == TARGET.slug


@dataclass
class Fragile:
    """Stands for a step process, which ends on certain pairs as a crash of compiled code does."""

    fatal: set[str]
    eager_too: bool = False
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, job: ConformJob, *, limit_s: float | None = None) -> Any:
        assert limit_s is None or limit_s > 0
        self.asked.append(job.pairs)
        if self.fatal & set(job.pairs) and (self.eager_too or not job.eager_only):
            raise StepCrashed("it ended", expected="a result", got="SIGSEGV", remedy="none")
        names = [pair.split(":") for pair in job.pairs]
        rows = [ConformanceRow(operator, dtype, "right") for operator, dtype in names]
        return ConformResult(tuple(rows))


def plan(folder: Path) -> Plan:
    return Plan(TARGET, {}, "g++", folder)


def test_a_crash_is_the_result_of_the_one_operator_that_crashes(tmp_path: Path) -> None:
    pairs = tuple(f"op{number}:float32" for number in range(9))
    process: Any = Fragile({"op5:float32"})
    rows = {row.pair: row for row in _ask(process, plan(tmp_path), pairs)}
    assert rows["op5:float32"].standing == "crashes"
    assert "SIGSEGV" in rows["op5:float32"].reason
    assert {row.standing for pair, row in rows.items() if pair != "op5:float32"} == {"right"}


def test_what_crashes_in_eager_is_no_fault_of_the_compiler(tmp_path: Path) -> None:
    process: Any = Fragile({"op:float32"}, eager_too=True)
    (row,) = _ask(process, plan(tmp_path), ("op:float32",))
    assert row.standing == "not compiled"
    assert "eager itself crashes" in row.reason


def test_a_run_that_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    reported: list[Progress] = []
    pairs = tuple(f"op{number}:float32" for number in range(250))
    first: Any = Fragile(set())
    rows, _ = _ask_all(
        plan(tmp_path), pairs[:120], RowStore(tmp_path / "kept"), [first], reported.append
    )
    assert len(rows) == 120
    second: Any = Fragile(set())
    rows, _ = _ask_all(
        plan(tmp_path), pairs, RowStore(tmp_path / "kept"), [second], reported.append
    )
    assert {row.pair for row in rows} == set(pairs)
    assert {pair for bundle in second.asked for pair in bundle} == set(pairs[120:])
    assert (reported[-1].done, reported[-1].total, reported[-1].left_s) == (250, 250, 0.0)
    # What was cut short is asked again.
    (kept, *_) = sorted((tmp_path / "kept").glob("*.json"))
    kept.write_text(kept.read_text()[:40])
    third: Any = Fragile(set())
    _ask_all(plan(tmp_path), pairs, RowStore(tmp_path / "kept"), [third], reported.append)
    assert sum(map(len, third.asked)) in (120, 130)
