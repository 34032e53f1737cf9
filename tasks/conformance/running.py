"""Asks every operator, bundle by bundle, in child processes; what is known is kept as it comes.

A public report's number stands beside a row that shows the same fault, in an operator and a dtype
that the report names or that are computed alike. A wrong row without one is not known to be
reported.

A bundle whose process crashes is asked again in halves, until the operator that crashes stands
alone. A run that is given again goes on where it was.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from handoff.artifacts.conformance.storage import shipped_table
from handoff.artifacts.conformance.table import (
    QUESTIONS,
    Conformance,
    ConformanceRow,
    toolchain_digest,
)
from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import StepCrashed
from handoff.artifacts.files.strict_parsing import parse_json
from handoff.artifacts.files.writing import write_atomically
from handoff.artifacts.recipe.target import CpuTarget, compile_variables, host_cpu_model
from handoff.artifacts.record import from_plain, to_plain
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.conformance.messages import ConformJob, ConformResult, PairsJob

_BYTES = ("int8", "uint8")
_FLOATS = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True)
class PublicReport:
    """A report's number, and the operators and dtypes whose rows show its fault.

    No dtypes stand for all. Where there is a `question`, the row has to be wrong under one whose
    name begins so.
    """

    number: int
    operators: tuple[str, ...]
    dtypes: tuple[str, ...] = ()
    question: str = ""


_REPORTS = (
    # Lanes that are not in use leak into the extremum.
    PublicReport(
        191499,
        (
            "amax", "amin", "aminmax", "argmax", "argmin", "max.reduction_no_dim",
            "max.reduction_with_dim", "min.reduction_no_dim", "min.reduction_with_dim",
            "pattern.min_max", "masked.amax", "masked.amin", "masked.argmax", "masked.argmin",
        ),
        _BYTES,
    ),
    PublicReport(197895, ("floor_divide", "div.floor_rounding"), _FLOATS),
    # Digits of a large quotient, and infinite divisors.
    PublicReport(198057, ("remainder", "__rmod__"), _FLOATS),
    PublicReport(197091, ("ldexp",)),
    # The legacy dtype of its result.
    PublicReport(198081, ("any",), ("uint8",)),
    PublicReport(
        198201, ("nn.functional.interpolate.nearest", "nn.functional.upsample_nearest")
    ),
    PublicReport(198094, ("pattern.scatter_then_overwrite",)),
    PublicReport(185337, ("pattern.half_and_back", "pattern.bfloat16_and_back")),
    # The mean of nothing.
    PublicReport(197108, ("var_mean.unbiased", "std_mean.unbiased"), _FLOATS, "as sampled"),
)  # fmt: skip


def attach_reports(row: ConformanceRow) -> ConformanceRow:
    """Return a wrong row with the numbers of the public reports on it."""
    if row.standing != "wrong":
        return row
    numbers = tuple(
        one.number for one in _REPORTS
        if row.operator in one.operators
        and (not one.dtypes or row.dtype in one.dtypes)
        and any(question.startswith(one.question) for question in row.questions)
    )  # fmt: skip
    return replace(row, reports=numbers)


# Some 200 samples: what is fixed about a compilation is a tenth of it then.
_PAIRS_PER_BUNDLE = 150


@dataclass(frozen=True)
class Progress:
    """How far a run is: pairs asked of all, and the seconds that are likely left."""

    done: int
    total: int
    left_s: float


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True)
class Plan:
    """What to ask, where to keep what is known, and in how many processes.

    `operators` are those of PyTorch's test suite to ask about; none named are all.
    """

    target: CpuTarget
    options: dict[str, object]
    compiler: str
    folder: Path
    operators: tuple[str, ...] = ()
    again: bool = False
    workers: int = 0


@dataclass(frozen=True)
class RowStore:
    """The rows that are known: those that runs left in `folder`, and those of an earlier table."""

    folder: Path
    previous: Conformance | None = None

    def read(self) -> tuple[dict[str, ConformanceRow], float]:
        """Return what is known by its pairs, and the seconds that it took to ask.

        What a run has found out goes before the earlier table.
        """
        rows = {row.pair: row for row in self.previous.rows} if self.previous else {}
        seconds = self.previous.seconds if self.previous else 0.0
        for path in sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
            try:
                result = from_plain(ConformResult, parse_json(path.read_bytes()), path.name)
            except (OSError, ValueError):
                # Cut short, or of another Handoff: asked again.
                continue
            rows |= {row.pair: row for row in result.rows}
            seconds += result.seconds
        return rows, seconds

    def write(self, rows: tuple[ConformanceRow, ...], seconds: float) -> None:
        """Write rows down, and the seconds of the run that they took, all or none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = digest_bytes(json.dumps([row.pair for row in rows]).encode()).short
        text = json.dumps(to_plain(ConformResult(rows, seconds)))
        write_atomically(self.folder / f"{name}.json", text, mode=0o666)


def make_table(plan: Plan, report_progress: ProgressCallback) -> Conformance:
    """Return the table of today's toolchain for the plan's target.

    What was asked before is taken from the plan's folder, and from the table that comes with the
    code, unless the plan says `again`.
    """
    workers = plan.workers or min(os.cpu_count() or 1, 4)
    processes = [
        StepProcess(
            _process_plan(plan.target, number), plan.folder / "logs" / f"worker-{number}.log"
        )
        for number in range(workers)
    ]
    try:
        listing = PairsJob(plan.target, plan.options, plan.compiler, plan.operators)
        listed = processes[0].run(listing)
        digest = toolchain_digest(listed.toolchain)
        shipped = shipped_table(digest)
        previous = shipped if shipped and shipped.questions == QUESTIONS else None
        store = RowStore(plan.folder / f"{digest.short}-{QUESTIONS}", previous)
        rows, seconds = _ask_all(plan, listed.pairs, store, processes, report_progress)
    finally:
        for process in processes:
            process.close()
    ordered = sorted(map(attach_reports, rows), key=lambda row: (row.operator, row.dtype))
    if previous and not plan.again and tuple(ordered) == previous.rows:
        # Nothing was asked: it stays what it is.
        return previous
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    return Conformance(listed.toolchain, made_at, round(seconds), tuple(ordered), host_cpu_model())


def _process_plan(target: CpuTarget, number: int) -> ProcessPlan:
    return ProcessPlan(
        f"conform-{number}", ("conformance.conform",), environment={
            **compile_variables(target), "PYTHONWARNINGS": "ignore",
        },
    )  # fmt: skip


def _ask_all(
    plan: Plan,
    pairs: tuple[str, ...],
    store: RowStore,
    processes: list[StepProcess],
    report_progress: ProgressCallback,
) -> tuple[list[ConformanceRow], float]:
    """Return a row for each pair, as it is known or asked now, and the seconds that all took."""
    stored, seconds = ({}, 0.0) if plan.again else store.read()
    rows = [stored[pair] for pair in pairs if pair in stored]
    missing = [pair for pair in pairs if pair not in stored]
    bundles = [
        tuple(missing[start : start + _PAIRS_PER_BUNDLE])
        for start in range(0, len(missing), _PAIRS_PER_BUNDLE)
    ]
    asked, began = 0, time.monotonic()
    idle = list(processes)

    def ask(bundle: tuple[str, ...]) -> tuple[ConformanceRow, ...]:
        process, since = idle.pop(), time.monotonic()
        try:
            found = _ask(process, plan, bundle)
        finally:
            idle.append(process)
        # The others are asked meanwhile.
        store.write(found, (time.monotonic() - since) / len(processes))
        return found

    with ThreadPoolExecutor(len(processes)) as pool:
        for future in as_completed([pool.submit(ask, bundle) for bundle in bundles]):
            found = future.result()
            rows += found
            asked += len(found)
            left = (time.monotonic() - began) / asked * (len(missing) - asked)
            report_progress(Progress(len(rows), len(pairs), left))
    return rows, seconds + time.monotonic() - began


def _ask(process: StepProcess, plan: Plan, bundle: tuple[str, ...]) -> tuple[ConformanceRow, ...]:
    """Ask a bundle; in halves where it crashes, down to the pair that does."""
    job = ConformJob(plan.target, plan.options, bundle)
    try:
        result = process.run(job)
    except StepCrashed as error:
        if len(bundle) > 1:
            middle = len(bundle) // 2
            return (*_ask(process, plan, bundle[:middle]), *_ask(process, plan, bundle[middle:]))
        return (_crash_row(process, job, error),)
    return result.rows


def _crash_row(process: StepProcess, job: ConformJob, error: StepCrashed) -> ConformanceRow:
    operator, _, dtype = job.pairs[0].rpartition(":")
    reason = str(error)[-300:].strip()
    try:
        process.run(replace(job, eager_only=True))
    except StepCrashed:
        return ConformanceRow(
            operator, dtype, "not compiled", "eager itself crashes on its samples"
        )
    return ConformanceRow(operator, dtype, "crashes", reason)
