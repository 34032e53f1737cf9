"""Locks on files and folders (`flock(2)`): one process at a time has what several would write to.

A lock ends with the process that has it, however that ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lock_folder(folder: Path) -> Iterator[int]:
    """Hold a folder that exists; give its descriptor, by which what is in it can be synced.

    Others that hold it come after this one.
    """
    descriptor = open_folder(folder)
    try:
        lock(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def is_folder_locked(folder: Path) -> bool:
    """Return whether a process holds the folder; one that isn't there is held by nobody."""
    try:
        descriptor = open_folder(folder)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def open_folder(folder: Path) -> int:
    """Return the descriptor of a folder that exists; who asked for it closes it."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


def lock(descriptor: int) -> None:
    """Lock an open file or folder until it is closed; whoever has it now comes first."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed, unless another has it; return whether."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_same_file(descriptor: int, path: Path) -> bool:
    """Return whether `path` names the open file: it may have been renamed or removed since."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
