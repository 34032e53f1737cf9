"""Copy a folder of regular files, without following a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from handoff.artifacts.delivery.contract import IGNORED_FOLDER
from handoff.artifacts.errors import DeliveryUnreadable
from handoff.artifacts.stores.s3_reading import changed
from handoff.tasks.fetch.budget import Budget, refuse_kind

_PIECE = 1 << 20


def copy_folder(source: Path, folder: Path, budget: Budget) -> None:
    """Copy every regular file below `source` into the new `folder`.

    What Python left beside a delivery's modules is left out. Raises `DeliveryUnreadable` for
    links, pipes and devices, and for a file that grows or shrinks meanwhile.
    """
    folder.mkdir()
    for place, folders, files, descriptor in os.fwalk(source, follow_symlinks=False):
        below = Path(place).relative_to(source)
        folders[:] = sorted(set(folders) - {IGNORED_FOLDER})
        for name in folders:
            mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(mode):
                raise refuse_kind(name, "a link")
            (folder / budget.take_name((below / name).as_posix(), "folder")).mkdir()
        for name in sorted(files):
            target = folder / budget.take_name((below / name).as_posix())
            _copy_file(name, descriptor, target, budget)


def copy_file(source: Path, target: Path, budget: Budget) -> None:
    """Copy one regular file; a link to one is followed, since somebody named it."""
    resolved = source.resolve()
    parent = os.open(resolved.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _copy_file(resolved.name, parent, target, budget)
    finally:
        os.close(parent)


def _copy_file(name: str, folder: int, target: Path, budget: Budget) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        source = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise refuse_kind(name, error.strerror or str(error)) from error
    with os.fdopen(source, "rb", buffering=0) as stream, target.open("xb") as copy:
        state = os.fstat(source)
        if not stat.S_ISREG(state.st_mode):
            raise refuse_kind(name, "something else")
        budget.require_room(state.st_size)
        size = 0
        while piece := stream.read(_PIECE):
            size += len(piece)
            budget.take_bytes(len(piece))
            copy.write(piece)
        if size != state.st_size:
            raise changed(name)


def require_there(path: Path) -> None:
    """Raise `DeliveryUnreadable` where nothing is."""
    if not path.exists():
        raise DeliveryUnreadable(
            f"there is no delivery at {path}", expected="a folder or an archive", got="nothing",
            remedy="Is the folder on a disk that the machine that fetches sees, too?",
        )  # fmt: skip
