"""The working folder, which this program leaves, and where a step process finds code not ours.

Prefect reads `prefect.toml`, `pyproject.toml` and `.env` of the working folder, uvicorn and its
like import from it, matplotlib reads `matplotlibrc`. None of that is to be had from a delivery. So
`handoff` goes into an empty folder of its own before such a library is imported; paths that it was
given are absolute by then. A process that only imports Handoff stays where it is.

Step processes are isolated (`artifacts.isolation`). Two things of the user's own are imported on
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

_EMPTY_FOLDER = "standing"
_may_leave_folder: list[bool] = []


@contextmanager
def working_folder_restored() -> Iterator[None]:
    """Let the body leave the working folder; return to it afterwards."""
    _may_leave_folder.append(True)
    before = _working_folder()
    try:
        yield
    finally:
        _may_leave_folder.pop()
        with suppress(OSError):
            os.chdir(before)


def empty_folder(home: Path) -> Path:
    """Return the folder below the home that nothing lies in, made where it wasn't there."""
    folder = home / _EMPTY_FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def leave_working_folder(home: Path) -> None:
    """Leave the working folder for the empty one, where `working_folder_restored` is around it."""
    if _may_leave_folder:
        current, target = _working_folder(), empty_folder(home)
        if current != target:
            _user_folder[:] = [str(current)]
            os.chdir(target)


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed
        return Path("/")


_OWN_PACKAGE = "handoff"
# What a delivery is made with; what these need in their turn is theirs, too.
_LIBRARIES = ("torch", "numpy", "safetensors")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# The user's working folder, where this process has left it.
_user_folder: list[str] = []
_user_search_path: list[str] = []


def search_path_for_children() -> tuple[str, ...]:
    """Return where a process that this one starts is to look for the user's own code."""
    folders = list(_user_folder)
    if not folders:
        with suppress(FileNotFoundError):  # it was removed
            folders.append(os.getcwd())  # noqa: PTH109
    others = (os.path.abspath(folder) for folder in sys.path if folder)  # noqa: PTH100
    return tuple(dict.fromkeys([*folders, *others]))


def set_user_search_path(folders: Sequence[str]) -> None:
    """Let this process find the user's own code in these folders."""
    _user_search_path[:] = folders


def extension_search_path(extensions: Sequence[str]) -> tuple[str, ...]:
    """Return the folders of the user's code, where there are extensions that may lie there."""
    return tuple(_user_search_path) if extensions else ()


def find_extension(name: str) -> ModuleSpec | None:
    """Return where the top-level module `name` is: installed, or in one of the user's folders."""
    return _find_user_module(name, _user_search_path)


def find_module(name: str, search_path: Sequence[str]) -> ModuleSpec | None:
    """Return where an import finds the top-level module `name` while these are `importing_from`."""
    spec = None if name in reserved_names() else PathFinder.find_spec(name, search_path)
    return spec or PathFinder.find_spec(name)


def user_search_path() -> tuple[str, ...]:
    """Return the folders in which this process looks for the user's own code."""
    return tuple(_user_search_path)


def _find_user_module(name: str, search_path: Sequence[str]) -> ModuleSpec | None:
    spec = PathFinder.find_spec(name)
    if spec is None and name not in reserved_names():
        spec = PathFinder.find_spec(name, search_path)
    return spec


def extension_files(extensions: Sequence[str], search_path: Sequence[str]) -> tuple[Path, ...]:
    """Return the files of extensions (`NAME@DIGEST`) that are found in the search path."""
    files = []
    for extension in extensions:
        name = extension.partition("@")[0].partition(".")[0]
        spec = _find_user_module(name, search_path)
        if spec is None:
            continue  # which the step process reports itself
        folders = spec.submodule_search_locations
        files += [Path(path) for path in folders or ([spec.origin] if spec.origin else [])]
    return tuple(files)


def allow_import(name: str) -> None:
    """Let the top-level module `name`, and no other, be imported from the user's folders."""
    sys.meta_path.append(_UserCodeFinder({name}))


@cache
def reserved_names() -> frozenset[str]:
    """Return the top-level names that are Handoff's, Python's or those of Handoff's libraries."""
    return frozenset({_OWN_PACKAGE}) | sys.stdlib_module_names | _library_modules()


def _library_modules() -> frozenset[str]:
    from importlib import metadata

    modules: set[str] = set()
    seen: set[str] = set()
    todo = list(_LIBRARIES)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        modules |= {
            part for file in distribution.files or () if (part := _top_level_module(file.parts))
        }
        needed = (line for line in distribution.requires or () if "extra ==" not in line)
        todo += [match.group() for line in needed if (match := _REQUIREMENT.match(line))]
    return frozenset(modules)


def _top_level_module(parts: Sequence[str]) -> str:
    """Return the top-level module that an installed file belongs to; '' for none."""
    first = parts[0].partition(".")[0] if len(parts) == 1 else parts[0]
    is_code = parts[-1].endswith((".py", ".so"))
    return first if is_code and first.isidentifier() else ""


class _UserCodeFinder:
    """Finds what isn't reserved in the folder first, then in the user's folders."""

    def __init__(self, names: Iterable[str] | None, first: Sequence[str] = ()) -> None:
        """Take the only top-level names to find; None for all that aren't reserved."""
        self._names = None if names is None else frozenset(names)
        self._first = first

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a top-level module is, None for what others are to find."""
        if path is not None or (name in reserved_names() if self._names is None
                                else name not in self._names):  # fmt: skip
            return None
        return PathFinder.find_spec(name, [*self._first, *_user_search_path], target)


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Import what isn't reserved from `folder` and the user's folders first while the body runs."""
    finder = _UserCodeFinder(None, (str(folder),))
    before = list(sys.path)
    sys.meta_path.insert(sys.meta_path.index(PathFinder), finder)
    sys.path += [path for path in (str(folder), *_user_search_path) if path not in sys.path]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.path[:] = before
