"""Files that are being written in a folder: held by their writer, and removed after a kill.

A process that is killed can't remove what it was writing. Each file is locked for as long as its
process lives, so that one which nobody holds was left behind, and the next writer removes it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from handoff.artifacts.files.locks import is_still, lock, try_lock


class UnfinishedFiles:
    """Temporary files in one folder, which is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, where nobody else keeps anything."""
        self.folder = folder
        self._is_swept = False

    @contextmanager
    def open(self) -> Iterator[tuple[Path, BinaryIO]]:
        """Give a new file, which is gone when the body ends, unless it was renamed by then."""
        if not self._is_swept:
            self.sweep()
            self._is_swept = True
        self.folder.mkdir(parents=True, exist_ok=True)
        with new_file(self.folder) as unfinished:
            yield unfinished

    def sweep(self) -> int:
        """Remove the files that no living process holds; return how many."""
        return sweep(self.folder)

    def abandon(self, older_than: datetime) -> int:
        """Remove the files last written before `older_than`; return how many.

        For folders on which nothing can be locked, where `sweep` finds all of them held.
        """
        abandoned = 0
        for path in _paths(self.folder, ""):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < older_than.timestamp():
                    path.unlink()
                    abandoned += 1
        return abandoned


@contextmanager
def new_file(
    folder: Path, prefix: str = "", *, mode: int = 0o600
) -> Iterator[tuple[Path, BinaryIO]]:
    """Give a new file in a folder, which is gone when the body ends, unless it was renamed by then.

    Its name begins with `prefix`, and its mode is `mode` less the process's umask.
    """
    path, descriptor = _make(folder, prefix, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield path, stream
    finally:
        path.unlink(missing_ok=True)


def sweep(folder: Path, prefix: str = "") -> int:
    """Remove a folder's files, named `prefix`..., that no living process holds; return how many."""
    return sum(_remove_unheld(path) for path in _paths(folder, prefix))


def _make(folder: Path, prefix: str, mode: int) -> tuple[Path, int]:
    while True:
        path = folder / f"{prefix}{secrets.token_hex(8)}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        # Where nothing can be locked, nobody can take it for left behind either.
        with suppress(OSError):
            lock(descriptor)
        # Whoever looked for what was left behind may have found it before it was locked.
        if is_still(descriptor, path):
            return path, descriptor
        os.close(descriptor)


def _paths(folder: Path, prefix: str) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.name.startswith(prefix)]
    except FileNotFoundError:
        return []


def _remove_unheld(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # it was renamed or removed, or is another user's
        return False
    try:
        # One that was renamed meanwhile is a key, and another may have its old name.
        if try_lock(descriptor) and is_still(descriptor, path):
            path.unlink()
            return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
