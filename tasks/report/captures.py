"""The capture table on the page."""

from __future__ import annotations

from handoff.artifacts.delivery.captures import COLUMNS, CaptureRow
from handoff.artifacts.release.manifest import Manifest
from handoff.tasks.report.view import Cell, Table, Tone, table


def captures_table(manifest: Manifest) -> Table | None:
    """Return what each capture technology makes of the model, where the recipe asked for it."""
    rows = [(*_judged(row), "; ".join(row.told)) for row in manifest.captures]
    return table("The capture table", (*COLUMNS, "told"), rows)


def _judged(row: CaptureRow) -> tuple[str | Cell, ...]:
    road, captured, right, *rest = row.cells
    tone: Tone = "good" if row.is_right else "warn"
    return (
        road, Cell(captured, "" if row.captured else "warn"), Cell(right, tone if right else ""),
        *rest,
    )  # fmt: skip
