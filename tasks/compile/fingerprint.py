"""Fingerprint: one digest for everything that a release is made from, our own code included."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from handoff.artifacts.digest import Digest, digest_bytes, digest_file, digest_tree
from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.isolation import own_package
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import ArmTarget, CudaTarget
from handoff.artifacts.record import to_plain
from handoff.tasks.compile.arm.sysroot import COMPILERS, find_program
from handoff.tasks.steps import ROWS

# A module that is imported, at whatever place, or named in a text, as child processes are.
_MODULE_NAME = re.compile(rb"\bhandoff((?:\.[a-z_][a-z_0-9]*)+)")
# What `infra` and `flows` hold starts the steps; what they compute is not theirs.
_ROOMS = ("artifacts", "tasks")
# It names every step, and computes nothing.
_STEP_TABLE = Path("tasks", "steps.py")


@cache
def digest_own_code() -> Digest:
    """Return the digest of the code that shapes releases: of the steps whose rows say so."""
    return digest_sources(*(f"tasks.{row.module_path}" for row in ROWS if row.shapes_release))


@cache
def digest_sources(*modules: str) -> Digest:
    """Return the digest of these modules' code and of all that it names, as it was at first."""
    root = Path(own_package())
    sources = find_sources(root, modules)
    return digest_tree({path.relative_to(root).as_posix(): digest_file(path) for path in sources})


def find_sources(root: Path, modules: Iterable[str]) -> set[Path]:
    """Return the files of these modules of `root`'s rooms and of all that they name, and so on.

    A package that is named counts with each module in it: `from` it anything may be imported.
    Beside a file, the C++ in its folder counts, which goes into packages.
    """
    waiting, found = list(modules), set[Path]()
    while waiting:
        for path in (
            set(_module_files(root, waiting.pop().split("."))) - found - {root / _STEP_TABLE}
        ):
            found.add(path)
            waiting += [name[1:].decode() for name in _MODULE_NAME.findall(path.read_bytes())]
    return found | {
        source for folder in {p.parent for p in found} for source in folder.glob("*.cpp")
    }


def _module_files(root: Path, names: list[str]) -> Iterator[Path]:
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


def fingerprint_release(delivery: Digest, recipe: Recipe, compiler: str) -> Digest:
    """Return what stands for a release's inputs: delivery, recipe, targets, toolchain, our code."""
    plain = {
        "delivery": delivery,
        "recipe": to_plain(recipe),
        "targets": [target.slug for target in recipe.resolved_targets()],
        "torch": _torch_version(),
        **_triton_entry(recipe),
        "compiler": compiler_banner(compiler),
        **_cross_compiler(recipe),
        "code": digest_own_code(),
    }
    return digest_bytes(json.dumps(plain, sort_keys=True).encode())


@cache
def _torch_version() -> str:
    """Return torch's version, which is read off a file of some kilobytes."""
    return version("torch")


def _triton_entry(recipe: Recipe) -> dict[str, str]:
    """Return the version of what compiles GPU kernels, where the recipe asks for any."""
    if not any(isinstance(target, CudaTarget) for target in recipe.resolved_targets()):
        return {}
    try:
        return {"triton": version("triton")}
    except PackageNotFoundError:
        return {"triton": ""}


def _cross_compiler(recipe: Recipe) -> dict[str, str]:
    """Return what compiles for ARM64 here, where the recipe asks for that."""
    targets = recipe.resolved_targets()
    if not any(isinstance(target, ArmTarget) and target.is_emulated for target in targets):
        return {}
    compiler = find_program(COMPILERS)
    return {"cross compiler": compiler_banner(compiler) if compiler else ""}


@cache
def compiler_banner(compiler: str) -> str:
    """Return what the compiler says of its version; raise `EnvironmentLacking` without one."""
    try:
        completed = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except OSError as error:
        raise EnvironmentLacking(
            "there is no C++ compiler", expected=compiler, got=error.strerror or str(error),
            remedy="Install g++, or set CXX to one that is there",
        ) from error  # fmt: skip
    return completed.stdout
