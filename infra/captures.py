"""The capture table on a terminal."""

from __future__ import annotations

import click

from artifacts.captures import COLUMNS, CaptureRow, recommend
from infra.console import print_table


def print_captures(rows: tuple[CaptureRow, ...]) -> None:
    """Print the table and the recommendation."""
    click.echo()
    print_table("", COLUMNS, [row.cells for row in rows])
    for row in rows:
        for line in row.told:
            click.echo(f"  {row.road}: {line}")
    click.echo(f"\n{recommend(rows)}")
