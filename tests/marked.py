"""Puts what a command has measured where a page shows it."""

from __future__ import annotations

import fcntl
import sys
from pathlib import Path


def text_between_marks(path: Path, name: str) -> str:
    """Return what stands between the comments `NAME: begin` and `NAME: end`; '' without them."""
    begin, end = _marks(name)
    return path.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]


def require_marks(path: Path | None, name: str) -> None:
    """End the command with a sentence, before it measures, where it couldn't write afterwards.

    Nothing is required where no file was named.
    """
    if path is None:
        return
    begin, end = _marks(name)
    text = path.read_text("utf-8") if path.is_file() else ""
    if end not in text.partition(begin)[2]:
        sys.exit(f"expected the marks {begin} and {end} in {path}, got none")


def write_between_marks(path: Path, name: str, text: str) -> None:
    """Put `text` between these comments of a Markdown file.

    Ends the command with a sentence where the file doesn't have them. Several commands may write to
    one file at once.
    """
    begin, end = _marks(name)
    with path.open("r+", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        before, _, rest = stream.read().partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            sys.exit(f"expected the marks {begin} and {end} in {path}, got none")
        stream.seek(0)
        stream.write(f"{before}{begin}\n{text}\n{end}{after}")
        stream.truncate()


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
