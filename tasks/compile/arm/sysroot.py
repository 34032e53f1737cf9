"""The folder of ARM64's libraries and headers, and the tools that go with it; no torch is imported.

It lies beside the libraries of the environment that torch is installed in (`.venv/arm64` in a
checkout), since it holds the same torch for ARM64; `make arm-ready` makes it. The compiler and the
emulator are Debian's.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.recipe.compatibility import base_version

COMPILERS = ("aarch64-linux-gnu-g++-12", "aarch64-linux-gnu-g++")
EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
DISASSEMBLER = "aarch64-linux-gnu-objdump"
# Written last: a folder with it is whole, and it names the torch that is in it.
TORCH_FILE = "torch-version"
PACKAGES = "g++-12-aarch64-linux-gnu libc6-arm64-cross qemu-user-static"


@dataclass(frozen=True)
class Sysroot:
    """ARM64's `include` and `lib` in `folder`, and the programs that work with them."""

    folder: Path
    compiler: str
    emulator: str
    disassembler: str

    @property
    def include(self) -> Path:
        """Torch's headers, for ARM64."""
        return self.folder / "include"

    @property
    def libraries(self) -> Path:
        """Torch's libraries and the C library, for ARM64."""
        return self.folder / "lib"


def is_arm_host() -> bool:
    """Return whether this machine runs ARM64's programs itself."""
    return platform.machine() == "aarch64"


def sysroot_folder() -> Path:
    """Return where the folder is, or would be: beside torch's environment's own libraries."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        raise EnvironmentLacking(
            "torch is not installed", expected="an environment with torch", got="none",
            remedy="Run 'make ready'",
        )  # fmt: skip
    # ENVIRONMENT/lib/python3.11/site-packages/torch/__init__.py
    return Path(torch.origin).parents[4] / "arm64"


def lacking() -> tuple[str, ...]:
    """Return what is missing here to build packages for ARM64; nothing where all is there."""
    missing = [
        f"{names[0]} on the PATH"
        for names in (COMPILERS, EMULATORS, (DISASSEMBLER,))
        if find_program(names) is None
    ]
    version_file = sysroot_folder() / TORCH_FILE
    expected = base_version(version("torch"))
    installed = version_file.read_text(encoding="utf-8").strip() if version_file.is_file() else ""
    if installed != expected:
        got = f", and it holds {installed}" if installed else ""
        missing.append(f"torch {expected} for ARM64 in {version_file.parent}{got}")
    return tuple(missing)


def find_sysroot() -> Sysroot:
    """Return the folder and its tools; raise `EnvironmentLacking` where something is missing."""
    if missing := lacking():
        raise EnvironmentLacking(
            "packages for ARM64 can't be built here",
            expected="a cross compiler, an emulator, and torch's libraries for ARM64",
            got=f"no {'; no '.join(missing)}",
            remedy=f"Install the tools (Debian: apt-get install {PACKAGES}) and run "
            "'make arm-ready', or leave that target out of the recipe",
        )
    programs = [find_program(names) for names in (COMPILERS, EMULATORS, (DISASSEMBLER,))]
    compiler, emulator, disassembler = (str(path) for path in programs)
    return Sysroot(sysroot_folder(), compiler, emulator, disassembler)


def find_program(names: tuple[str, ...]) -> str | None:
    """Return where the first of some programs is that is on the PATH; None for none."""
    return next(filter(None, map(shutil.which, names)), None)
