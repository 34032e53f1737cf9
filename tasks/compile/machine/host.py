"""The machine and the compiler that a package is built with, and what it asks of another."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import torch

from handoff.artifacts.errors import BlessingRefused, EnvironmentLacking
from handoff.artifacts.machine.elf import needed_glibc
from handoff.artifacts.recipe.compatibility import Fit
from handoff.artifacts.recipe.target import (
    ArmTarget,
    CudaTarget,
    Target,
    host_cpu_flags,
    native_target,
)
from handoff.tasks.compile.arm.sysroot import find_sysroot

# The flags of /proc/cpuinfo that stand for instructions which a compiler may emit.
_INSTRUCTION_FLAG = re.compile(
    r"avx.*|amx_.*|ssse3|sse.*|fma|f16c|bmi[12]|abm|movbe|adx|v?aes|v?pclmulqdq|sha_ni|gfni|popcnt"
)


# What every package is compiled with.
SHIPPED_OPTIONS: dict[str, object] = {
    # As many threads as the serving machine has. Without it, torch 2.15's reductions have room for
    # as many as the building machine has cores and run with as many as there are: on a larger
    # machine they write beyond that (`KernelGroup.parallel` and `CppKernel` in Inductor's
    # codegen/cpp.py; tests/tasks/probe/test_packages.py shows when it is fixed).
    "cpp.dynamic_threads": True,
}
if hasattr(torch._inductor.config.aot_inductor, "enable_line_tables"):
    # For profilers: 1.3 MB of names and lines, which each opening would hash and copy.
    SHIPPED_OPTIONS["aot_inductor.enable_line_tables"] = False


def require_compiler() -> str:
    """Return the C++ compiler that Inductor will call; raise `EnvironmentLacking` without one."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        return str(get_cpp_compiler())
    except Exception as error:
        raise EnvironmentLacking(
            "no C++ compiler was found",
            expected="g++ (or the compiler that CXX names) on the PATH",
            got="none",
            remedy="Install one (Debian: apt-get install g++) and run the same command again",
        ) from error


def compiler_for(target: Target) -> str:
    """Return the C++ compiler for a target; raise `EnvironmentLacking` without one."""
    if isinstance(target, ArmTarget) and target.is_emulated:
        return find_sysroot().compiler
    return require_compiler()


def require_level(target: Target, used: tuple[str, ...]) -> None:
    """Raise `BlessingRefused` for a package that uses instructions which its target may lack."""
    beyond = sorted(set(used) - target.cpu_flags)
    if not has_march_option() and (isinstance(target, CudaTarget) or target == native_target()):
        # This torch compiles for the building machine's own processor, and `fit_of` says so.
        beyond = sorted(set(beyond) - host_cpu_flags())
    if beyond:
        raise BlessingRefused(
            f"the package for {target.slug} needs more than its target has",
            expected=f"instructions of {target.march} ({', '.join(sorted(target.cpu_flags))})",
            got=", ".join(beyond),
            remedy="Name a target that has them, or build with torch 2.13 or newer",
        )


def has_march_option() -> bool:
    """Return whether this torch lets the compiler's level be chosen (2.13 does, 2.11 does not)."""
    return hasattr(torch._inductor.config.cpp, "march")


def fit_of(target: Target, library: Path) -> Fit:
    """Return what the package needs of a machine: the target's level, and the library's versions.

    A torch that always compiles for the building machine's own processor makes packages that may
    need whatever that processor has.
    """
    flags = target.cpu_flags
    if not has_march_option():
        flags = frozenset(flag for flag in host_cpu_flags() if _INSTRUCTION_FLAG.fullmatch(flag))
    return Fit(
        cpu_flags=tuple(sorted(flags)),
        torch=torch.__version__,
        machine="aarch64" if isinstance(target, ArmTarget) else platform.machine(),
        gpu_capability=target.sm if isinstance(target, CudaTarget) else 0,
        gpu_also=target.further if isinstance(target, CudaTarget) else (),
        glibc=needed_glibc(library),
        # Both ways to compile for a GPU go by torch's own CUDA (`tasks.compile.cross.toolkit`).
        cuda=str(torch.version.cuda or "") if isinstance(target, CudaTarget) else "",
    )


def toolchain_of(compiler: str) -> dict[str, str]:
    """Return the versions of what a package is built with."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=True, timeout=30
    )
    return {
        "torch": torch.__version__,
        "compiler": version.stdout.splitlines()[0],
        "glibc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
    }
