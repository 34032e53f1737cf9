"""Fills the capture table: each method in a process of its own, whose end is a row as well."""

from __future__ import annotations

from pathlib import Path

from handoff.artifacts.delivery.captures import CAPTURE_METHODS, CaptureMethod, CaptureRow
from handoff.artifacts.errors import StepCrashed
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.captures.messages import CaptureJob


def fill_rows(staging: Path, extensions: tuple[str, ...], logs: Path) -> tuple[CaptureRow, ...]:
    """Return a row for each method, tried on the delivery in `staging`; each takes seconds."""
    return tuple(_fill_row(staging, method, extensions, logs) for method in CAPTURE_METHODS)


def _fill_row(
    staging: Path, method: CaptureMethod, extensions: tuple[str, ...], logs: Path
) -> CaptureRow:
    name = method.replace(".", "-").replace(" ", "-")
    plan = ProcessPlan(name, ("intake.step",), extensions=extensions, reads=(staging,))
    process = StepProcess(plan, logs / f"{name}.log")
    try:
        return process.run(CaptureJob(staging, method))
    except StepCrashed as error:
        return CaptureRow(method, captured=False, reason=f"crashed: {error.got.partition(';')[0]}")
    finally:
        process.close()
