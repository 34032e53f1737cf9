"""MLflow's database in a file: made whole, or not at all.

MLflow makes its tables in some forty migrations, which takes seconds. A process that was killed in
between leaves a file that no later one can use, since a migration doesn't expect its own half.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from handoff.artifacts.files.locks import held
from handoff.artifacts.files.unfinished import UnfinishedFiles


def database_file(tracking_uri: str) -> Path | None:
    """Return the file of an embedded database; None for another one, or for a server."""
    path = tracking_uri.removeprefix("sqlite:///")
    return Path(path) if path not in (tracking_uri, "", ":memory:") else None


def make_database(file: Path, make_tables: Callable[[str], object]) -> None:
    """Make the database in `file`, unless it is there; `make_tables` does so at another URI."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with held(file.parent) as folder:
        if file.exists():
            return
        unfinished = UnfinishedFiles(file.parent / ".unfinished")
        with unfinished.open() as (made, _), unfinished.open() as (whole, _):
            make_tables(f"sqlite:///{made}")
            # A copy, because what made the tables holds its file open still.
            with closing(sqlite3.connect(made)) as source, closing(sqlite3.connect(whole)) as copy:
                source.backup(copy)
            whole.replace(file)
        os.fsync(folder)
