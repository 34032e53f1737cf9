"""Fills the capture table: each road in a process of its own, whose end is a row as well."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

from artifacts.captures import ROADS, CaptureJob, CaptureRow, Road, recommend
from artifacts.errors import StepCrashed
from infra.console import print_table
from tasks.child import ProcessPlan, StepProcess

_LIMIT_S = 180.0


def capture_table(staging: Path, extensions: tuple[str, ...]) -> tuple[CaptureRow, ...]:
    """Return a row for each road, gone with the delivery in `staging`."""
    return tuple(_row(staging, road, extensions) for road in ROADS)


def _row(staging: Path, road: Road, extensions: tuple[str, ...]) -> CaptureRow:
    name = road.replace(".", "-").replace(" ", "-")
    log = staging.with_name(f"{name}.log")
    process = StepProcess(ProcessPlan(name, extensions=extensions), log)
    try:
        return cast(CaptureRow, process.run(CaptureJob(staging, road), limit_s=_LIMIT_S))
    except StepCrashed as error:
        late = "no result within" in error.got
        reason = f"no result within {_LIMIT_S:.0f} s" if late else error.got.partition(";")[0]
        return CaptureRow(road, captured=False, reason=f"crashed: {reason}")
    finally:
        process.close()


def print_captures(rows: tuple[CaptureRow, ...]) -> None:
    """Print the table and the recommendation."""
    click.echo()
    columns = ("captured by", "captured", "right elsewhere", "max error", "x eager", "capture")
    print_table("", columns, [_cells(row) for row in rows])
    for row in rows:
        told = [row.reason] if row.reason else [*row.wrong[:3], *row.breaks[:3]]
        for line in told:
            click.echo(f"  {row.road}: {line}")
    click.echo(f"\n{recommend(rows)}")


def _cells(row: CaptureRow) -> tuple[str, ...]:
    if not row.captured:
        return row.road, "no", "", "", "", ""
    right = f"{row.tried - len(row.wrong)} of {row.tried}"
    speed = f"{row.speedup:.2f} ({row.speedup_low:.2f}-{row.speedup_high:.2f})"
    breaks = f", {len(row.breaks)} breaks" if row.breaks else ""
    return (
        row.road, f"yes{breaks}", right, f"{row.max_abs:.1e}", speed if row.speedup else "",
        f"{row.capture_s:.1f} s",
    )  # fmt: skip
