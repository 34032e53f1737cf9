"""Where a compilation works: the same path each time, so that the same bytes come out.

Inductor hashes and embeds the path of its cache: with another one the library differs. The folder
is therefore named after the compilation's key, begins empty, and is gone afterwards.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from artifacts.digest import Digest
from artifacts.errors import EnvironmentLacking
from tasks.compiling.patching import environment

_ROOT = Path("/tmp")  # noqa: S108 - a fixed path is the point; the folder is private


@contextmanager
def fixed_place(key: Digest) -> Iterator[Path]:
    """Give an empty private folder for Inductor's files, and make it Inductor's cache.

    A second process that compiles the same waits for the first. Raises `EnvironmentLacking` where
    the path belongs to somebody else.
    """
    folder = _ROOT / f"handoff-{key.hex[:16]}"
    lock = _ROOT / f"{folder.name}.lock"
    _sweep()
    descriptor = _hold(lock)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        with environment({"TORCHINDUCTOR_CACHE_DIR": str(folder)}):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        # Who waits for this one finds that it is gone, and makes the next.
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _sweep() -> None:
    """Remove what compilations left that were killed: those whose lock nobody holds any more."""
    for lock in _ROOT.glob("handoff-*.lock"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # it is another user's, or gone
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_uid == os.getuid() and _is_at(descriptor, lock):
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink()
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)


def _hold(path: Path) -> int:
    while True:
        descriptor = _open_lock(path)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _open_lock(path: Path) -> int:
    try:
        # Not through a link that somebody else has put there.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        owner = os.fstat(descriptor).st_uid
    except OSError as error:
        owner = -1
        reason = error.strerror or str(error)
    else:
        reason = f"one of user {owner}"
    if owner != os.getuid():
        raise EnvironmentLacking(
            f"{path} can't be used",
            expected="a lock file of one's own, for a build at a fixed path",
            got=reason,
            remedy="Remove it, or let its owner finish the same build",
        )
    return descriptor


@contextmanager
def built_apart(folder: Path) -> Iterator[Path]:
    """Give a folder beside `folder` that takes its place once the body has filled it, or is gone.

    What a process left there that was killed is removed first.
    """
    building = folder.with_name(folder.name + ".building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        yield building
        flush(building)
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def flush(folder: Path) -> None:
    """Write the folder's files through to the disk."""
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
