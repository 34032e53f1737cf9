"""How our own processes are started: so that nothing of the folder one stands in is imported.

    python -I handoff/artifacts/isolation.py MODULE ARGUMENT ...

`python -m` looks for modules in the working folder first, and then where `PYTHONPATH` says: a
`torch.py` that lies in a delivery would run. Isolated (`-I`), Python looks into its own library and
its environment's packages alone; where Handoff isn't one of these, its own place comes after them.
"""

from __future__ import annotations

import os
import runpy
import site
import sys
from collections.abc import Sequence
from pathlib import Path

# For the processes that ours start in their turn, such as Inductor's compile workers.
ISOLATION_VARIABLES = {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}
# What would add to what a Python process runs or imports.
_REFUSED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONBREAKPOINT")


def own_package() -> str:
    """Return the folder of the package `handoff`."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120


def own_root() -> str:
    """Return the folder that `handoff` lies in."""
    return os.path.dirname(own_package())  # noqa: PTH120


def import_folders() -> tuple[Path, ...]:
    """Return the folders that our processes import from: Python's packages, and ours.

    In a checkout the rooms of `handoff` are links to where they lie. Debian's Python names folders
    of packages that an environment doesn't have: they are left out, since nobody can make them
    where the environment is read-only.
    """
    package = Path(own_package())
    rooms = (path.resolve() for path in package.iterdir() if path.is_symlink())
    packages = (Path(folder) for folder in site.getsitepackages())
    return (*(folder for folder in packages if folder.is_dir()), package, *rooms)


def isolated_command(module: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command that runs `python -m module` isolated; `options` are Python's own."""
    return [sys.executable, "-I", *options, os.path.abspath(__file__), module, *arguments]  # noqa: PTH100


def isolated_environment(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment in which what is started imports from Python's own places alone."""
    allowed = {name: value for name, value in environment.items() if name not in _REFUSED}
    return {**allowed, **ISOLATION_VARIABLES}


def _run(arguments: list[str]) -> None:
    if (root := own_root()) not in sys.path:
        sys.path.append(root)
    sys.argv[:] = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run(sys.argv[1:])
