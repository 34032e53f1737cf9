"""The settings that a shell asks for at each Tab: they can't wait for the others' imports."""

from __future__ import annotations

import os
from pathlib import Path

from handoff.artifacts.errors import UsageProblem


def absolute_path(path: Path) -> Path:
    """Return a path from the root on and without `..`, as other processes are given it."""
    return path.resolve() if ".." in path.parts else path.absolute()


def home_folder() -> Path:
    """Return the folder of this machine's state: `HANDOFF_HOME`, or the platform's data folder."""
    folder = os.environ.get("HANDOFF_HOME", "")
    if folder:
        return absolute_path(Path(folder).expanduser())
    from platformdirs import user_data_path

    return user_data_path("handoff", appauthor=False)


def store_location(home: Path) -> str:
    """Return where the store is: a folder's absolute path, or `s3://bucket/prefix`.

    Raises `UsageProblem` for anything else in `HANDOFF_STORE`.
    """
    location = os.environ.get("HANDOFF_STORE", "")
    return resolve_store(location or str(home / "store"), "HANDOFF_STORE")


def resolve_store(store: str, what: str) -> str:
    """Return a store's location as all processes are given it; raise `UsageProblem` for none.

    `what` is who names it: a setting, or an argument.
    """
    scheme, separator, remainder = store.partition(":/")
    is_address = bool(separator) and "/" not in scheme
    if is_address and (scheme != "s3" or not remainder.startswith("/")):
        raise UsageProblem(
            f"{what} names no store", expected="a folder or s3://bucket/prefix", got=store,
            remedy=f"Set {what} to one of these, or unset it",
        )  # fmt: skip
    if scheme == "s3" and not store.removeprefix("s3://").strip("/"):
        raise UsageProblem(
            f"{what} names no bucket", expected="s3://bucket/prefix", got=store,
            remedy="Name the bucket",
        )  # fmt: skip
    if not is_address:
        store = str(absolute_path(Path(store).expanduser()))
        if Path(store).is_file():
            raise UsageProblem(
                f"{what} names a file", expected="a folder or s3://bucket/prefix", got=store,
                remedy=f"Set {what} to one of these, or unset it",
            )  # fmt: skip
    return store


def wants_no_colour() -> bool:
    """Return whether `NO_COLOR` is set to anything, which turns colours off (no-color.org)."""
    return bool(os.environ.get("NO_COLOR"))
