"""Small files that are written whole or not at all, and folders of them that stay small."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# What a process that was killed leaves behind begins like this.
UNFINISHED = ".writing-"


def write_whole(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write `text` in the place of what is there, or leave that as it is; raise `OSError`."""
    descriptor, temporary = tempfile.mkstemp(prefix=UNFINISHED, dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def keep_newest(folder: Path, count: int) -> None:
    """Remove all but so many of the folder's JSON files: those that were written last stay."""
    files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[count:]:
        file.unlink(missing_ok=True)
