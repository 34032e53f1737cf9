"""Our own code that shapes a release's bytes or its verdict: what else we change makes none due."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from handoff.artifacts.digest import Digest, digest_file, digest_tree
from handoff.artifacts.isolated import own_package
from handoff.tasks.steps import ROWS

# A module that is imported, at whatever place, or named in a text, as child processes are.
_NAMED = re.compile(rb"\bhandoff((?:\.[a-z_][a-z_0-9]*)+)")
# What `infra` and `flows` hold starts the steps; what they compute is not theirs.
_ROOMS = ("artifacts", "tasks")
# It names every step, and computes nothing.
_TABLE = Path("tasks", "steps.py")


@cache
def own_code() -> Digest:
    """Return the digest of the code that shapes releases: of the steps whose rows say so."""
    return digest_sources(*(f"tasks.{row.module}" for row in ROWS if row.shapes_release))


@cache
def digest_sources(*modules: str) -> Digest:
    """Return the digest of these modules' code and of all that it names, as it was at first."""
    root = Path(own_package())
    sources = sources_below(root, modules)
    return digest_tree({path.relative_to(root).as_posix(): digest_file(path) for path in sources})


def sources_below(root: Path, modules: Iterable[str]) -> set[Path]:
    """Return the files of these modules of `root`'s rooms and of all that they name, and so on.

    A package that is named counts with each module in it: `from` it anything may be imported.
    Beside a file, the C++ in its folder counts, which goes into packages.
    """
    waiting, found = list(modules), set[Path]()
    while waiting:
        for path in set(_files_of(root, waiting.pop().split("."))) - found - {root / _TABLE}:
            found.add(path)
            waiting += [name[1:].decode() for name in _NAMED.findall(path.read_bytes())]
    return found | {
        source for folder in {p.parent for p in found} for source in folder.glob("*.cpp")
    }


def _files_of(root: Path, names: list[str]) -> Iterator[Path]:
    """Give the files that importing a module runs; what follows a module's name is in it."""
    if names[0] not in _ROOMS:
        return
    folder = root
    for number, name in enumerate(names, start=1):
        if not (folder / name).is_dir():
            yield from (path for path in [folder / f"{name}.py"] if path.is_file())
            return
        folder /= name
        yield from folder.glob("*.py" if number == len(names) else "__init__.py")
