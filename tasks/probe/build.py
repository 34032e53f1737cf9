"""Build the C++ runner against the libtorch of this process; once for each source and toolchain."""

from __future__ import annotations

import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from handoff.artifacts.digest import digest_bytes, digest_file
from handoff.artifacts.errors import EnvironmentLacking
from handoff.tasks.compile.arm.sysroot import find_sysroot
from handoff.tasks.compile.machine.host import require_compiler

# torch 2.15's headers need C++20; the runner itself is C++17.
FLAGS = ("-std=c++20", "-O2", "-Wall", "-Wextra")
_LIMIT_S = 600.0


@dataclass(frozen=True)
class _Toolchain:
    """A compiler, and where torch's `include` and `lib` lie that it works with."""

    compiler: str
    torch: Path


def build_runner(source: Path, programs: Path) -> tuple[Path, float]:
    """Return the program that `source` is compiled to, and the seconds that took; 0 if it is there.

    It is kept in `programs` by the digests of its source, torch, the compiler and the flags. Two
    that build at once make the same, and the last rename wins. Raises `EnvironmentLacking` where
    there is no compiler, or it fails.
    """
    return _build(source, programs, _Toolchain(require_compiler(), _torch_folder()))


def build_arm_runner(source: Path, programs: Path) -> tuple[Path, float]:
    """Return what `build_runner` does for ARM64, compiled on another machine."""
    sysroot = find_sysroot()
    return _build(source, programs, _Toolchain(sysroot.compiler, sysroot.folder))


def _build(source: Path, programs: Path, tools: _Toolchain) -> tuple[Path, float]:
    began = time.monotonic()
    sources = sorted(source.glob("*.cpp"))
    if not sources:
        raise _build_error(source, "no .cpp file in it")
    program = programs / f"handoff-runner-{_cache_key(tools, source)}"
    if program.exists():
        return program, 0.0
    programs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=programs, prefix=".building-") as folder:
        # All as one: torch's headers are nine tenths of the work, and are read once.
        combined, binary = Path(folder, "runner.cpp"), Path(folder, "runner")
        combined.write_text("".join(f'#include "{path.absolute()}"\n' for path in sources))
        flags = [*FLAGS, *include_flags(tools.torch)]
        _run([tools.compiler, *flags, str(combined), "-o", str(binary), *link_flags(tools.torch)])
        # A confined process changes no file's mode: the linker's doing so has had no effect.
        runnable = Path(folder, "runnable")
        runnable.touch(mode=0o755)
        runnable.write_bytes(binary.read_bytes())
        runnable.rename(program)
    return program, time.monotonic() - began


def include_flags(torch_folder: Path | None = None) -> list[str]:
    """Return the options that find torch's headers, as a system's: their warnings aren't ours.

    They lie in the installed torch, or in another folder.
    """
    include = (torch_folder or _torch_folder()) / "include"
    api = include / "torch" / "csrc" / "api" / "include"
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    return [abi, "-isystem", str(include), "-isystem", str(api)]


def link_flags(torch_folder: Path | None = None) -> list[str]:
    """Return the options that link libtorch, and find it again when the program is started.

    A package names libtorch.so itself and is opened with what is loaded, so that the program keeps
    it though it calls nothing there.
    """
    libraries = str((torch_folder or _torch_folder()) / "lib")
    return [
        f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-Wl,--no-as-needed", "-ltorch",
        "-ltorch_cpu", "-lc10", "-lpthread", "-ldl",
    ]  # fmt: skip


def _torch_folder() -> Path:
    return Path(torch.__file__).parent


def _cache_key(tools: _Toolchain, source: Path) -> str:
    version = subprocess.run(
        [tools.compiler, "--version"], capture_output=True, text=True, check=True, timeout=30
    ).stdout
    files = sorted([*source.glob("*.cpp"), *source.glob("*.h")])
    digests = [f"{path.name} {digest_file(path)}" for path in files]
    parts = [*digests, version, torch.__version__, str(tools.torch), *FLAGS]
    return digest_bytes("\n".join(parts).encode()).short


def _run(command: list[str]) -> None:
    completed = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    if completed.returncode != 0:
        errors = [line for line in completed.stderr.splitlines() if "error" in line]
        raise _build_error(
            Path(command[0]), (errors or completed.stderr.splitlines() or ["nothing"])[0]
        )


def _build_error(what: Path, got: str) -> EnvironmentLacking:
    return EnvironmentLacking(
        "the C++ runner could not be built, so that no package can be probed",
        expected="a program, from g++ 11 or newer and torch's headers",
        got=f"{what.name}: {got[:300]}",
        remedy="Build it by hand as infra/runner/README.md says, to see all of the errors",
    )
