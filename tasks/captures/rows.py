"""Fills the capture table: each road in a process of its own, whose end is a row as well."""

from __future__ import annotations

from pathlib import Path

from handoff.artifacts.delivery.captures import ROADS, CaptureRow, Road
from handoff.artifacts.errors import StepCrashed
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.captures.messages import CaptureJob


def fill_rows(staging: Path, extensions: tuple[str, ...], logs: Path) -> tuple[CaptureRow, ...]:
    """Return a row for each road, gone with the delivery in `staging`; each takes seconds."""
    return tuple(_row(staging, road, extensions, logs) for road in ROADS)


def _row(staging: Path, road: Road, extensions: tuple[str, ...], logs: Path) -> CaptureRow:
    name = road.replace(".", "-").replace(" ", "-")
    plan = ProcessPlan(name, ("intake.step",), extensions=extensions, reads=(staging,))
    process = StepProcess(plan, logs / f"{name}.log")
    try:
        return process.run(CaptureJob(staging, road))
    except StepCrashed as error:
        return CaptureRow(road, captured=False, reason=f"crashed: {error.got.partition(';')[0]}")
    finally:
        process.close()
