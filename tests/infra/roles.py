"""Environments of one role: the wheel with its base dependencies and those of extras, no more.

They are made of links to what is installed here, since nothing else differs: to folders, or to each
file where confined processes have to read what lies in the environment itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.infra.test_wheel import build


def required_distributions(
    name: str, extras: Iterable[str] = (), found: dict[str, Distribution] | None = None
) -> dict[str, Distribution]:
    """Return by `name[extra]` a distribution, itself and with its extras, and all that they need.

    An extra may be nothing without another one's, such as cuda-toolkit[cublas].
    """
    seen = {} if found is None else found
    for extra in ("", *extras):
        key = f"{name}[{extra}]".lower()
        if key in seen:
            continue
        seen[key] = distribution(name)
        for requirement in map(Requirement, seen[key].requires or []):
            if not requirement.marker or requirement.marker.evaluate({"extra": extra}):
                required_distributions(requirement.name, requirement.extras, seen)
    return seen


def top_level_paths(found: Distribution) -> Iterator[Path]:
    """Give what a distribution has directly in the folder of packages."""
    for name in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
        yield Path(str(found.locate_file(name)))


def role(folder: Path, *extras: str, file_by_file: bool = False) -> Path:
    """Make an environment of a role in `folder`; return its Python."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")]
    subprocess.run(command, check=True)
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    zipfile.ZipFile(build(folder)).extractall(packages)
    for found in required_distributions("handoff", extras).values():
        for top in top_level_paths(found) if found.name != "handoff" else ():
            if not (packages / top.name).exists():
                if file_by_file:
                    _link(top, packages / top.name)
                else:
                    (packages / top.name).symlink_to(top)
    return folder / "venv" / "bin" / "python"


def _link(top: Path, to: Path) -> None:
    if top.is_dir():
        shutil.copytree(top, to, copy_function=_link_file)
    else:
        _link_file(str(top), str(to))


def _link_file(source: str, to: str) -> None:
    try:
        os.link(source, to)
    except OSError:
        # They lie on different file systems.
        shutil.copy2(source, to)


def run(python: Path, folder: Path, *arguments: str, **settings: str) -> tuple[int, str, str]:
    """Run Python in a folder, with a home of its own; return code, output and errors."""
    environment = {"PATH": "/usr/bin:/bin", "HANDOFF_HOME": str(folder / "home"), **settings}
    ended = subprocess.run(
        [python, *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout, ended.stderr
