"""The capture table on a terminal."""

from __future__ import annotations

from handoff.artifacts.delivery.captures import COLUMNS, CaptureRow, recommend
from handoff.infra.terminal.console import print_table
from handoff.infra.terminal.echoing import echo


def print_captures(rows: tuple[CaptureRow, ...]) -> None:
    """Print the table and the recommendation."""
    echo()
    print_table("", COLUMNS, [row.cells for row in rows])
    for row in rows:
        for line in row.told:
            echo(f"  {row.road}: {line}")
    echo(f"\n{recommend(rows)}")
