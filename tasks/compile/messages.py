"""What compiling for a target is asked, what it shares with others, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from handoff.artifacts.digest import Digest
from handoff.artifacts.recipe.compatibility import Fit
from handoff.artifacts.recipe.target import Target
from handoff.artifacts.record import Job
from handoff.artifacts.release.manifest import PackageFile


@dataclass(frozen=True)
class CompileJob(Job["CompileResult"]):
    """Compile the exported program in `program` for `target`; write the packages to `folder`.

    Packages that were compiled before are looked for in the folder `cache` (None: nowhere), unless
    the compilation has to be `fresh`, and kept there. What compilations share is taken from the
    folder `shared` (None: it is made once more).
    """

    program: Path
    target: Target
    folder: Path
    options: dict[str, object]
    cache: Path | None = None
    fresh: bool = False
    shared: Path | None = None


@dataclass(frozen=True)
class ToolsJob(Job["ToolsResult"]):
    """Make ready what compilations for `target` with these `options` share, in `shared`.

    Beside it the C++ runner, whose source is the folder `runner`, is built into `programs`.
    """

    target: Target
    options: dict[str, object]
    shared: Path
    runner: Path
    programs: Path


@dataclass(frozen=True)
class ToolsResult:
    """The C++ runner's program, and whether anything had to be made."""

    program: Path
    made: bool


@dataclass(frozen=True)
class AssumedRange:
    """A narrower range than the declared one, which the compiler assumed for an input's axis.

    It may have chosen an implementation by it: whether the package is right beyond it has to be
    seen.
    """

    place: int
    axis: int
    low: int
    high: int


@dataclass(frozen=True)
class KernelSource:
    """A kernel in a package for a GPU: its name, the digest of its source, its block sizes."""

    name: str
    digest: Digest
    blocks: dict[str, int]


ReusedPart = Literal["", "code", "package"]


@dataclass(frozen=True)
class CompileResult:
    """The packages of one target, what they ask of a machine, and how long the compiler took.

    `instruction_sets` are those that were found in the code, by /proc/cpuinfo's names. `reused` is
    what came from the cache: the package whole, its code with other weights, or nothing. `kernels`
    names each GPU kernel with the configuration that was kept. `code` is the digest of all of the
    library that its speed depends on; empty where that isn't known. `atomic_sums` are the functions
    in it that add floating-point numbers in an order that threads decide. `sources` say what the
    kernels for a GPU that isn't here were compiled from.
    """

    files: tuple[PackageFile, ...]
    fit: Fit
    compile_s: float
    toolchain: dict[str, str]
    instruction_sets: tuple[str, ...] = ()
    reused: ReusedPart = ""
    assumed: tuple[AssumedRange, ...] = ()
    kernels: tuple[str, ...] = ()
    code: str = ""
    atomic_sums: tuple[str, ...] = ()
    sources: tuple[KernelSource, ...] = ()

    @property
    def library(self) -> PackageFile:
        """The shared library among the files."""
        (found,) = [file for file in self.files if file.path.endswith(".so")]
        return found


@dataclass(frozen=True)
class FindPackageJob(Job["FoundPackage"]):
    """Find out what the compilation `compiling` would take from its cache; change nothing."""

    compiling: CompileJob


@dataclass(frozen=True)
class FoundPackage:
    """What is there: the package whole, its code with other weights, or nothing."""

    reused: ReusedPart
