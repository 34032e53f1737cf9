"""Small files that are written whole or not at all, and folders of them that stay small."""

from __future__ import annotations

import os
from pathlib import Path

from handoff.artifacts.files.unfinished import new_file, sweep

# What a process that was killed leaves behind begins like this; the next writer removes it.
UNFINISHED = ".writing-"


def write_whole(
    path: Path, content: str | bytes, *, mode: int = 0o600, is_synced: bool = False
) -> None:
    """Write `content` in the place of what is there, or leave that as it is; raise `OSError`.

    The file's mode is `mode` less the process's umask: by default only its owner may read it. With
    `is_synced` its bytes are on the disk before it has its name; the name itself may not be.
    """
    sweep(path.parent, UNFINISHED)
    with new_file(path.parent, UNFINISHED, mode=mode) as (partial, stream):
        stream.write(content.encode("utf-8") if isinstance(content, str) else content)
        stream.flush()
        if is_synced:
            os.fsync(stream.fileno())
        partial.replace(path)


def flush(path: Path) -> None:
    """Write a file's bytes, or a folder's list of names, through to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_newest(folder: Path, count: int) -> None:
    """Remove all but so many of the folder's JSON files: those that were written last stay."""
    files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[count:]:
        file.unlink(missing_ok=True)
