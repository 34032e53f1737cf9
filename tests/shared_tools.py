"""What tests only read and is dear to make, made once for all processes of a test run.

The C++ runner, precompiled headers, a release of a small model, Prefect's empty database.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Made = TypeVar("Made")
_VARIABLE = "TESTS_OF_ONE_RUN_SHARE"
_TOOLS_LIMIT_S = 600.0

if _VARIABLE not in os.environ:
    # This is the run's first process: the others inherit the variable, and end before it does.
    _FOLDER = tempfile.TemporaryDirectory(prefix="handoff-tests-share-")
    os.environ[_VARIABLE] = _FOLDER.name
    (Path(_FOLDER.name) / "first").write_text(str(os.getpid()))


def run_folder() -> Path:
    """Return the folder of all that the processes of this run share."""
    return Path(os.environ[_VARIABLE])


def first_process() -> int:
    """Return the run's first process, which the others end before."""
    return int((run_folder() / "first").read_text())


def made_once(name: str, make: Callable[[Path], Made]) -> Made:
    """Return what the first process of the run to ask for it has made in the folder given to it.

    The others wait for it. What fails is made again by the next that asks.
    """
    folder = run_folder() / name
    with folder.with_name(f"{name}.made").open("a+b") as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        kept.seek(0)
        if content := kept.read():
            made: Made = pickle.loads(content)
            return made
        folder.mkdir(exist_ok=True)
        made = make(folder)
        kept.write(pickle.dumps(made))
        return made


def share_built(builds: Path) -> None:
    """Let every folder of builds have what the first one made."""
    built = run_folder()
    for name in ("programs", "compiler"):
        (built / name).mkdir(exist_ok=True)
        # A home that can't be made is what one of the tests is about.
        with contextlib.suppress(OSError):
            builds.mkdir(parents=True, exist_ok=True)
            if not (builds / name).is_symlink():
                (builds / name).symlink_to(built / name)
    _make_tools_once()


def shared_compiler() -> Path:
    """Return the folder of precompiled headers that all releases of the run share."""
    shared = run_folder() / "compiler"
    shared.mkdir(exist_ok=True)
    _make_tools_once()
    return shared


def copy_built(builds: Path) -> None:
    """Put a copy of it there, for a test that something tries to spoil it in."""
    _make_tools_once()
    for name in ("programs", "compiler"):
        if (run_folder() / name).is_dir():
            shutil.copytree(run_folder() / name, builds / name)


def _make_tools_once() -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Alone, the first release makes them. Of two that begin at once each would.
        made_once("tools", _make_tools)


def _make_tools(folder: Path) -> None:
    from handoff.artifacts.recipe.recipe import Recipe
    from handoff.artifacts.recipe.target import native_cpu_target
    from handoff.tasks.release.processes import Processes

    for name in ("programs", "compiler"):
        (folder.parent / name).mkdir(exist_ok=True)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(folder.parent / name)
    with Processes(folder / "workspace", Recipe(), delivery=folder) as processes:
        processes.tools(native_cpu_target()).result(_TOOLS_LIMIT_S)
