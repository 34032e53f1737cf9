"""Files that are being written in a folder: held by who writes them, and removed after a kill.

A process that is killed can't remove what it was writing. Each file is locked for as long as its
process lives, so that one which nobody holds was left behind, and the next writer removes it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO


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
        path, descriptor = self._make()
        try:
            with os.fdopen(descriptor, "wb") as stream:
                yield path, stream
        finally:
            path.unlink(missing_ok=True)

    def sweep(self) -> int:
        """Remove the files that no living process holds; return how many."""
        return sum(self._remove_unheld(path) for path in self._paths())

    def abandon(self, older_than: datetime) -> int:
        """Remove the files last written before `older_than`; return how many.

        For folders on which nothing can be locked, where `sweep` finds all of them held.
        """
        abandoned = 0
        for path in self._paths():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < older_than.timestamp():
                    path.unlink()
                    abandoned += 1
        return abandoned

    def _make(self) -> tuple[Path, int]:
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self.folder)
            # Where nothing can be locked, nobody can take it for left behind either.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Whoever looked for what was left behind may have found it before it was locked.
            if os.fstat(descriptor).st_nlink:
                return Path(name), descriptor
            os.close(descriptor)

    def _paths(self) -> list[Path]:
        try:
            return list(self.folder.iterdir())
        except FileNotFoundError:
            return []

    @staticmethod
    def _remove_unheld(path: Path) -> bool:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:  # it was renamed or removed, or is another user's
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # One that was renamed meanwhile is a key, and another may have its old name.
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                path.unlink()
                return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False
