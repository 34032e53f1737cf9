"""Files and folders that appear under their name whole or not at all, and what is left of a kill.

A process that is killed can't remove what it was writing. Each file is locked for as long as its
process lives, so that one which nobody holds was left behind, and the next writer removes it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.files.locks import is_same_file, lock, open_folder, try_lock

# What a process that was killed leaves behind begins like this; the next writer removes it.
UNFINISHED = ".writing-"


def write_atomically(
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
        for path in _list_files(self.folder, ""):
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
    path, descriptor = _create_locked(folder, prefix, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield path, stream
    finally:
        path.unlink(missing_ok=True)


def sweep(folder: Path, prefix: str = "") -> int:
    """Remove a folder's files, named `prefix`..., that no living process holds; return how many."""
    return sum(_remove_unlocked(path) for path in _list_files(folder, prefix))


def _create_locked(folder: Path, prefix: str, mode: int) -> tuple[Path, int]:
    while True:
        path = folder / f"{prefix}{secrets.token_hex(8)}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        # Where nothing can be locked, nobody can take it for left behind either.
        with suppress(OSError):
            lock(descriptor)
        # Whoever looked for what was left behind may have found it before it was locked.
        if is_same_file(descriptor, path):
            return path, descriptor
        os.close(descriptor)


def _list_files(folder: Path, prefix: str) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.name.startswith(prefix)]
    except FileNotFoundError:
        return []


def _remove_unlocked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # it was renamed or removed, or is another user's
        return False
    try:
        # One that was renamed meanwhile is a key, and another may have its old name.
        if try_lock(descriptor) and is_same_file(descriptor, path):
            path.unlink()
            return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


@contextmanager
def staged_folder(to: Path, digest: Digest) -> Iterator[Path]:
    """Give the folder that becomes `to` at the end of the body, unless that raises.

    What an interrupted fetch of the same `digest` left is in it, to go on from; what is of another
    one is removed. Raises `UsageProblem` where `to` holds something, or is being fetched into.
    """
    _require_free(to)
    to.parent.mkdir(parents=True, exist_ok=True)
    with _partial_folder(to, digest) as partial:
        yield partial
        partial.chmod(0o755)
        if to.exists():
            to.rmdir()
        partial.rename(to)


def replace_folder(built: Path, place: Path) -> None:
    """Let the folder `built` take the place of what is in `place`; raise `OSError`."""
    shutil.rmtree(place, ignore_errors=True)
    built.rename(place)


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Give a new private folder in `parent`, named `prefix`..., which is gone after the body.

    Unless it was renamed by then. What can't be removed stays, and no modes are changed for it, as
    `tempfile.TemporaryDirectory` would: what lies there may be another's links.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _partial_folder(to: Path, digest: Digest) -> Iterator[Path]:
    """Give the folder that what is fetched is put in; one process at a time has it.

    A file appears in it under its name only once it is whole and verified. It stays behind when
    the body fails, for the next one to go on from.
    """
    partial = to.parent / f".{to.name}.{digest.short}.partial"
    for other in to.parent.glob(f".{to.name}.*.partial"):
        if other != partial:
            shutil.rmtree(other, ignore_errors=True)
    partial.mkdir(mode=0o700, exist_ok=True)
    descriptor = open_folder(partial)
    try:
        if not try_lock(descriptor):
            raise UsageProblem(
                f"{to} is being pulled into already", expected="one pull at a time",
                got="another one", remedy="Wait for it, or name another folder with --to",
            )  # fmt: skip
        yield partial
    finally:
        os.close(descriptor)


def is_free(folder: Path) -> bool:
    """Return whether `folder` is a new or an empty one."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def _require_free(folder: Path) -> None:
    if is_free(folder):
        return
    raise UsageProblem(
        f"{folder} can't be pulled into", expected="a new or an empty folder, or the same release",
        got="a file" if folder.is_file() else "a folder with something else in it",
        remedy="Name another folder with --to, or remove that one",
    )  # fmt: skip
