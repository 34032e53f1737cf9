"""The folder of each build below the home folder: held while it is built, kept after a refusal.

What a build leaves that was killed is removed by the next one that begins, or by the last one that
ends, since nobody knows of it.
"""

from __future__ import annotations

import calendar
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from handoff.artifacts.files.locks import is_folder_locked, lock, lock_folder, open_folder
from handoff.artifacts.files.writing import UNFINISHED

# Builds that ended in a refusal are kept for a look; the oldest make room for new ones.
_KEPT_BUILDS = 4
_REFUSED = "refused"
_STAMP = "%Y%m%d-%H%M%S"
# What the steps write beside the builds and rename when it is whole: cache entries, the runner.
_UNFINISHED = (
    "packages/.entry-*", "programs/.building-*", "compiler/.making-*",
    f"compiler/ready/{UNFINISHED}*", f"measured/{UNFINISHED}*",
)  # fmt: skip


def open_workspace(builds: Path) -> Path:
    """Return a new folder in `builds` that this process holds until it ends.

    Builds that were killed are removed, and of those that were refused all but the newest.
    """
    builds.mkdir(parents=True, exist_ok=True)
    with lock_folder(builds):
        _sweep(builds, kept=_KEPT_BUILDS - 1)
        name = f"{time.strftime(_STAMP, time.gmtime())}-{os.getpid()}"
        # A process may open several within a second: one that is refused at once shows that.
        opened = sum(path.name.startswith(name) for path in builds.iterdir())
        workspace = builds / (f"{name}.{opened}" if opened else name)
        workspace.mkdir(mode=0o700)
        # Never closed: the lock ends with the process, however that ends.
        lock(open_folder(workspace))
    return workspace


@contextmanager
def scratch_workspace(builds: Path) -> Iterator[Path]:
    """Give a folder for logs and temporary files, which is gone when the body ends."""
    workspace = open_workspace(builds)
    try:
        yield workspace
    finally:
        remove_workspace(workspace)


def remove_workspace(workspace: Path) -> None:
    """Remove the folder of a build that is over, and what others have left that nobody builds.

    A killed one's compiler may write for seconds more, beyond the beginning of the next build.
    """
    shutil.rmtree(workspace, ignore_errors=True)
    with lock_folder(workspace.parent):
        _sweep(workspace.parent, kept=_KEPT_BUILDS)


def keep_workspace(workspace: Path) -> None:
    """Let the builds that come next leave this one where it is, for a while."""
    (workspace / _REFUSED).touch()


def _sweep(builds: Path, kept: int) -> None:
    """Remove what killed builds have left, and of those that were refused all but the newest."""
    workspaces = sorted(path for path in builds.iterdir() if path.name[:2].isdigit())
    ended = [path for path in workspaces if not is_folder_locked(path)]
    refused = [path for path in ended if (path / _REFUSED).exists()]
    for path in {*ended} - {*refused[-kept:]}:
        shutil.rmtree(path, ignore_errors=True)
    # What was written before the oldest of those at work began is nobody's.
    oldest_start = min(
        (_start_time(path) for path in {*workspaces} - {*ended}), default=float("inf")
    )
    for path in [found for pattern in _UNFINISHED for found in builds.glob(pattern)]:
        if _modified_time(path) < oldest_start:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _start_time(workspace: Path) -> float:
    """Return when a build began, in seconds since 1970, as its folder's name says; else 0."""
    try:
        return calendar.timegm(time.strptime(workspace.name[:15], _STAMP))
    except ValueError:
        return 0.0


def _modified_time(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0
