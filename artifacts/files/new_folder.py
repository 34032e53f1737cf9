"""Folders that appear under their name only once they are whole, or are gone at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.files.locks import open_folder, try_lock


@contextmanager
def becoming(to: Path, digest: Digest) -> Iterator[Path]:
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


def _require_free(folder: Path) -> None:
    if not folder.exists() or (folder.is_dir() and not any(os.scandir(folder))):
        return
    raise UsageProblem(
        f"{folder} can't be pulled into", expected="a new or an empty folder, or the same release",
        got="a file" if folder.is_file() else "a folder with something else in it",
        remedy="Name another folder with --to, or remove that one",
    )  # fmt: skip
