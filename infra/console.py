"""What a person sees: tables, findings and the progress of steps; JSON for programs."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from artifacts.evidence import Finding


def print_json(value: object) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as wide as it needs to be, numbers to the right; colours on a terminal only."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        cells = [row[index] for row in rows]
        numeric = all(cell[:1].isdigit() or cell in ("-", "") for cell in cells)
        table.add_column(
            column, justify="right" if numeric and index else "left", no_wrap=not index
        )
    for row in rows:
        table.add_row(*row)
    # A log has no width of its own: give it one that no table of ours outgrows.
    width = None if sys.stdout.isatty() else 160
    Console(width=width, highlight=False, soft_wrap=False).print(table)


def print_findings(findings: Sequence[Finding]) -> None:
    """Print each finding with its place, what it means and what to do."""
    for finding in findings:
        place = f"{finding.where}: " if finding.where else ""
        click.echo(f"  {finding.severity:8}{place}{finding.message} [{finding.code}]")
        click.echo(f"          {finding.remedy}")


class _PlainProgress(logging.Handler):
    """One line a step's end: what a log wants."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "phase", "") not in ("begin", "under way"):
            click.echo(record.getMessage(), err=True)


_START = "start"


class _LiveProgress(logging.Handler):
    """One line a step, with its seconds running while it works: what a terminal wants."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn

        self.progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[took]}"),
            console=Console(stderr=True),
        )
        # Nothing is announced before the flow runs, and an embedded Prefect takes seconds to start.
        self._rows: dict[str, Any] = {_START: self._add(_START)}
        self._began = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        step: str = getattr(record, "step", record.getMessage())
        phase = getattr(record, "phase", "")
        if _START in self._rows:
            self._finish(_START, time.monotonic() - self._began)
        if phase == "begin":
            self._rows[step] = self._add(step)
        elif phase == "under way":
            done, total = (size(record.__dict__[name]) for name in ("done", "total"))
            if step in self._rows:
                self.progress.update(self._rows[step], took=f"{done} of {total}")
        elif step in self._rows:
            self._finish(step, record.__dict__.get("seconds", 0.0), failed=phase == "failed")

    def _add(self, step: str) -> Any:  # noqa: ANN401 - rich's own identifier
        return self.progress.add_task(step, total=1, took="")

    def _finish(self, step: str, took_s: float, *, failed: bool = False) -> None:
        row = self._rows.pop(step)
        description = f"[red]refused[/] {step}" if failed else step
        self.progress.update(row, completed=1, description=description, took=f"{took_s:.1f} s")


@contextmanager
def shown_progress() -> Iterator[None]:
    """Show the steps' progress on standard error while the body runs."""
    logger = logging.getLogger("handoff.progress")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    live = _LiveProgress() if sys.stderr.isatty() else None
    handler: logging.Handler = live or _PlainProgress()
    logger.addHandler(handler)
    try:
        if live:
            with live.progress:
                yield
        else:
            yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def shown_transfer() -> Iterator[Callable[[str, int, int], None]]:
    """Give what draws how far a transfer is: it is told a file, bytes since then, bytes in all.

    On a terminal only, since a log wants no bars.
    """
    if not sys.stderr.isatty():
        yield lambda _file, _count, _size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True)) as progress:
        rows: dict[str, Any] = {}

        def tell(file: str, count: int, size_bytes: int) -> None:
            if file not in rows:
                rows[file] = progress.add_task(file, total=size_bytes)
            progress.update(rows[file], advance=count)

        yield tell


def seconds(value: float) -> str:
    """Return seconds with the digits that a reader wants: `12.3 s`, `4.56 ms`, `78.9 µs`."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def size(count: int) -> str:
    """Return bytes as people read them: `48.5 MB`."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def age(created: str) -> str:
    """Return an ISO time as `2026-11-21 02:10`; what isn't one is returned as it is."""
    return created[:16].replace("T", " ")


def now_stamp() -> str:
    """Return the time for a folder's name, in UTC: `20261121-021000`."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime())
