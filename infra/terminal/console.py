"""What a person sees: tables, findings, transfers, quantities; JSON for programs."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from handoff.artifacts.printable import one_line, printable, printable_json
from handoff.artifacts.release.evidence import Finding
from handoff.infra.cli.group import is_quiet
from handoff.infra.terminal.output import echo, styled

_MARGIN = " " * 10
_COLOURS = {"unsound": "red", "limit": "yellow", "note": None}


def print_json(value: object) -> None:
    """Print one JSON object."""
    echo(printable_json(json.dumps(value, indent=2, ensure_ascii=False)))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as wide as it needs to be, numbers to the right; colours on a terminal only."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(one_line(title)) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for index, column in enumerate(columns):
        cells = [row[index] for row in rows]
        numeric = all(cell[:1].isdigit() or cell in ("-", "") for cell in cells)
        justify: Literal["left", "right"] = "right" if numeric and index else "left"
        table.add_column(Text(one_line(column)), justify=justify, no_wrap=not index)
    for row in rows:
        # As text, because a string would be read for markup: colours, links.
        table.add_row(*(Text(printable(cell)) for cell in row))
    # A log has no width of its own: give it one that no table of ours outgrows.
    width = None if sys.stdout.isatty() else 160
    Console(width=width, highlight=False, soft_wrap=False).print(table)


# Notes about where a delivery comes from: the numbers are the same, so that once is enough.
_SHOWN_ONCE = ("lineage-incomplete",)


def print_findings(findings: Sequence[Finding], *, again: bool = False) -> None:
    """Print each finding with its place, what it means and what to do.

    A terminal gets lines of its own width, a log one line for each sentence. `again` is for what
    comes behind an inspection: a note on where the delivery comes from is only named there.
    """
    for finding in findings:
        if again and finding.severity == "note" and finding.code in _SHOWN_ONCE:
            hint = f"{finding.code}, as 'handoff inspect' tells"
            echo("  ", styled("note    ", fg=_COLOURS["note"]), hint)
            continue
        location = f"{finding.where}: " if finding.where else ""
        message, remedy = one_line(f"{location}{finding.message}"), one_line(finding.remedy)
        severity = styled(f"{finding.severity:8}", fg=_COLOURS[finding.severity])
        sentence = fit_to_terminal(f"{message} [{finding.code}]", len(_MARGIN))
        echo("  ", severity, sentence)
        echo(_MARGIN + fit_to_terminal(remedy, len(_MARGIN)))


def fit_to_terminal(text: str, margin: int) -> str:
    """Return the text in lines that fit a terminal to the right of a margin of so many columns."""
    if not sys.stdout.isatty():
        return text
    width = max(shutil.get_terminal_size().columns - margin, 20)
    # Paths and names stay whole, to be copied.
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * margin}".join(lines)


@contextmanager
def show_transfer() -> Iterator[Callable[[str, int, int], None]]:
    """Give what draws how far a transfer is, on a terminal only: a log wants no bars.

    It is called with a file, the bytes since the last call, and all of its bytes.
    """
    if is_quiet() or not sys.stderr.isatty():
        yield lambda _file, _count, _size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True)) as progress:
        rows: dict[str, Any] = {}

        def advance(file: str, count: int, size_bytes: int) -> None:
            if file not in rows:
                rows[file] = progress.add_task(one_line(file), total=size_bytes)
            progress.update(rows[file], advance=count)

        yield advance


def seconds(value: float) -> str:
    """Return seconds with the digits that a reader wants: `12.3 s`, `4.56 ms`, `78.9 µs`."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def format_time(created: str) -> str:
    """Return an ISO time as `2026-11-21 02:10`; what isn't one is returned as it is."""
    return created[:16].replace("T", " ")
