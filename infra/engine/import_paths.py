"""Where this program stands, and where code that isn't ours is found by a step process.

Prefect reads `prefect.toml`, `pyproject.toml` and `.env` of the working folder, uvicorn and its
like import from it, matplotlib reads `matplotlibrc`. None of that is to be had from a delivery. So
`handoff` goes into an empty folder of its own before such a library is imported; paths that it was
given are absolute by then. A process that only imports Handoff stays where it is.

Step processes are isolated (`artifacts.isolated`). Two things of the user's own are imported on
purpose all the same: the extensions that a recipe names, and the training side's factory with all
that it imports. Both are looked for in the folder that the user stands in and where the process
that started this one imports from; neither can take the place of a module of Handoff's, of Python's
own library, or of a library that Handoff itself uses.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

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
            stand_for(str(here))
            os.chdir(folder)


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed
        return Path("/")


_OURS = "handoff"
# What a delivery is made with; what these need in their turn is theirs, too.
_LIBRARIES = ("torch", "numpy", "safetensors")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_standing: list[str] = []
_places: list[str] = []


def stand_for(folder: str) -> None:
    """Take `folder` for the one that the user stands in: this process has left it."""
    _standing[:] = [folder]


def places_to_tell() -> tuple[str, ...]:
    """Return where a process that this one starts is to look for the user's own code."""
    here = _standing or _folder_now()
    return tuple(dict.fromkeys([*here, *(os.path.abspath(place) for place in sys.path if place)]))  # noqa: PTH100


def _folder_now() -> list[str]:
    try:
        return [os.getcwd()]  # noqa: PTH109
    except FileNotFoundError:  # it was removed
        return []


def look_in(places: Sequence[str]) -> None:
    """Let this process find the user's own code in these folders."""
    _places[:] = places


def places_for(extensions: Sequence[str]) -> tuple[str, ...]:
    """Return the places told, where there are extensions that may lie there."""
    return tuple(_places) if extensions else ()


def find_extension(name: str) -> ModuleSpec | None:
    """Return where the top-level module `name` is: installed, or in one of the places told."""
    return _find(name, _places)


def find_module(name: str, places: Sequence[str]) -> ModuleSpec | None:
    """Return where an import finds the top-level module `name` while these are `searched`."""
    found = None if name in hidden_names() else PathFinder.find_spec(name, places)
    return found or PathFinder.find_spec(name)


def user_places() -> tuple[str, ...]:
    """Return the places told, in which the user's own code is looked for here."""
    return tuple(_places)


def _find(name: str, places: Sequence[str]) -> ModuleSpec | None:
    found = PathFinder.find_spec(name)
    if found is None and name not in hidden_names():
        found = PathFinder.find_spec(name, places)
    return found


def files_of(extensions: Sequence[str], places: Sequence[str]) -> tuple[Path, ...]:
    """Return where the code of extensions (`NAME@DIGEST`) lies that is found in the places."""
    found = []
    for told in extensions:
        name = told.partition("@")[0].partition(".")[0]
        spec = _find(name, places)
        if spec is None:
            continue  # which the process tells itself
        folders = spec.submodule_search_locations
        found += [Path(place) for place in folders or ([spec.origin] if spec.origin else [])]
    return tuple(found)


def let_be_imported(name: str) -> None:
    """Let the top-level module `name`, and no other, be imported from the places told."""
    sys.meta_path.append(_Finder({name}))


@cache
def hidden_names() -> frozenset[str]:
    """Return the top-level names that are Handoff's, Python's or those of Handoff's libraries."""
    return frozenset({_OURS}) | sys.stdlib_module_names | _names_of_libraries()


def _names_of_libraries() -> frozenset[str]:
    from importlib import metadata

    found: set[str] = set()
    seen: set[str] = set()
    todo = list(_LIBRARIES)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            held = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found |= {part for file in held.files or () if (part := _top(file.parts))}
        needed = (line for line in held.requires or () if "extra ==" not in line)
        todo += [match.group() for line in needed if (match := _REQUIREMENT.match(line))]
    return frozenset(found)


def _top(parts: Sequence[str]) -> str:
    """Return the top-level module that an installed file belongs to; '' for none."""
    first = parts[0].partition(".")[0] if len(parts) == 1 else parts[0]
    is_code = parts[-1].endswith((".py", ".so"))
    return first if is_code and first.isidentifier() else ""


class _Finder:
    """Finds what isn't hidden in the folder first, then in the places told."""

    def __init__(self, names: Iterable[str] | None, first: Sequence[str] = ()) -> None:
        """Take the only top-level names to find; None for all that aren't hidden."""
        self._names = None if names is None else frozenset(names)
        self._first = first

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a top-level module is, None for what others are to find."""
        if path is not None or (name in hidden_names() if self._names is None
                                else name not in self._names):  # fmt: skip
            return None
        return PathFinder.find_spec(name, [*self._first, *_places], target)


@contextmanager
def searched(folder: Path) -> Iterator[None]:
    """Import from `folder` and the places told while the body runs, what isn't hidden first."""
    finder = _Finder(None, (str(folder),))
    before = list(sys.path)
    sys.meta_path.insert(sys.meta_path.index(PathFinder), finder)
    sys.path += [place for place in (str(folder), *_places) if place not in sys.path]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.path[:] = before
