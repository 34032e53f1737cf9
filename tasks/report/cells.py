"""Tables as the page's templates are given them, and the words for numbers in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "good", "warn", "bad", "code"]


@dataclass(frozen=True)
class Cell:
    """A table's cell: its words, and how they are shown."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True)
class Table:
    """A table under a caption; without `columns` the first cell of each row is its heading."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def table(
    caption: str, columns: tuple[str, ...], rows: Iterable[Sequence[str | Cell]]
) -> Table | None:
    """Return a table, or None where it would have no rows."""
    cells = [tuple(c if isinstance(c, Cell) else Cell(c) for c in row) for row in rows]
    return Table(caption, columns, tuple(cells)) if cells else None


def format_count(count: int, what: str) -> str:
    """Return a number of things: `1 thread`, `2 threads`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def format_number(value: float | None, form: str) -> str:
    """Return a number, or a dash for one that isn't known."""
    return "-" if value is None else format(value, form)
