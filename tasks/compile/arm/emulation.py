"""How a program for ARM64 is started on another machine, and what is to be said of that.

QEMU's user mode translates one process's instructions; system calls go to this kernel, so that all
that confines a process confines the emulated one. Files are looked for below the sysroot first,
among them those of `/proc` and `/sys` that say which processor this is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from handoff.artifacts.recipe.target import TARGETS, ArmTarget
from handoff.tasks.compile.arm.sysroot import find_sysroot

# A processor that has what the level has to have: what is beyond it ends with SIGILL.
_EMULATED_CPUS = {"v8.2": "neoverse-n1"}
# So many times as long as usual what calls a package under emulation may take.
EMULATION_SLOWDOWN = 10


def emulated_target(slug: str) -> ArmTarget | None:
    """Return the target where this machine runs its packages by an emulator; None for others."""
    target = TARGETS.get(slug)
    return target if isinstance(target, ArmTarget) and target.is_emulated else None


def emulation_command(target: ArmTarget, program: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs an ARM64 program on this machine.

    Raises `EnvironmentLacking` where there is no emulator, or no libraries for it.
    """
    sysroot = find_sysroot()
    return [
        sysroot.emulator, "-cpu", _EMULATED_CPUS[target.isa], "-L", str(sysroot.folder),
        str(program), *arguments,
    ]  # fmt: skip


def describe_emulator(target: ArmTarget) -> str:
    """Return by which emulator packages are run, and as which processor."""
    return f"{_read_version(find_sysroot().emulator)} as {_EMULATED_CPUS[target.isa]}"


def describe_emulation(target: ArmTarget) -> str:
    """Return what the record says: what has run the package, and what wasn't seen."""
    return f"run by {describe_emulator(target)}; its speed was not measured"


@cache
def _read_version(emulator: str) -> str:
    completed = subprocess.run(
        [emulator, "--version"], capture_output=True, text=True, timeout=30, check=True
    )
    # Its own, and behind it in brackets that of the distribution's package.
    name, _, version = completed.stdout.splitlines()[0].partition(" version ")
    return f"{name} {version.partition(' ')[0]}"
