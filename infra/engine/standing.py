"""Where this program stands: not in a folder of somebody's, once libraries read what lies there.

Prefect reads `prefect.toml`, `pyproject.toml` and `.env` of the working folder, uvicorn and its
like import from it, matplotlib reads `matplotlibrc`. None of that is to be had from a delivery. So
`handoff` goes into an empty folder of its own before such a library is imported; paths that it was
given are absolute by then. A process that only imports Handoff stays where it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from handoff.infra.engine import looking

_FOLDER = "standing"
_is_program: list[bool] = []


@contextmanager
def as_a_program() -> Iterator[None]:
    """Let the body step aside; stand where it began after it."""
    _is_program.append(True)
    before = _here()
    try:
        yield
    finally:
        _is_program.pop()
        with suppress(OSError):
            os.chdir(before)


def empty_folder(home: Path) -> Path:
    """Return the folder below the home that nothing lies in, made where it wasn't there."""
    folder = home / _FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def step_aside(home: Path) -> None:
    """Leave the working folder for the empty one, where this process is a program of ours."""
    if _is_program:
        here, folder = _here(), empty_folder(home)
        if here != folder:
            looking.stand_for(str(here))
            os.chdir(folder)


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed
        return Path("/")
