"""What cross-compiling leans on: a known torch, Triton's assembler, CUDA's headers, a compiler.

All of it comes with the wheels that a CUDA build of torch from the package index depends on, g++
apart; no CUDA toolkit has to be installed. `fatbinary` doesn't: it is in the wheel of
`nvidia-cuda-nvcc` and in a toolkit, and is asked for only where a package is to hold
more of its kernels than machine code for one GPU.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.machine.gpu import GpuProfile
from handoff.artifacts.recipe.compatibility import base_version
from handoff.tasks.compile.cross.fatbinary import require_fatbinary
from handoff.tasks.compile.machine.host import require_compiler
from handoff.tasks.compile.patching import patch_environment

# Each torch whose internals `simulated_gpu` is known to fit, with the Triton that goes with it.
# Another joins this list when the tests in tests/tasks/compile/cross pass with it, `compile` ones
# included.
KNOWN_TORCH: dict[str, str] = {"2.15.0": "3.9.0", "2.11.0": "3.6.0"}

# What the wrapper that AOTInductor writes includes, by way of torch's own headers.
_HEADERS = ("cuda.h", "cuda_runtime_api.h", "crt/host_defines.h", "nv/target")
_CUDA_VERSION = re.compile(r"^#define CUDA_VERSION (\d+)", re.MULTILINE)

# What the wrapper calls of the driver. A linker may leave out a library of which nothing is used,
# and nothing else would bring the driver in when the package is loaded.
_DRIVER_FUNCTIONS = (
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuGetErrorString",
)


@dataclass(frozen=True)
class Toolkit:
    """The tools that were found: folders of CUDA's headers in order of preference, and programs."""

    headers: tuple[Path, ...]
    ptxas: Path
    compiler: str
    fatbinary: Path | None


def why_unsupported() -> str | None:
    """Return why this torch can't cross-compile, or None where it can."""
    base = base_version(torch.__version__)
    if torch.version.cuda is None:
        return f"torch {torch.__version__}, which was built without CUDA"
    if base not in KNOWN_TORCH:
        return f"torch {torch.__version__}"
    if find_spec("triton") is None or version("triton") != KNOWN_TORCH[base]:
        installed = "no triton" if find_spec("triton") is None else f"triton {version('triton')}"
        return f"torch {base} with {installed}"
    return None


def can_add_ptx() -> bool:
    """Return whether this torch makes fat binaries without a CUDA toolkit; 2.11 wants nvcc."""
    return not torch.__version__.startswith("2.11.")


def require_known_torch() -> None:
    """Raise `EnvironmentLacking` unless this torch's internals are known."""
    if reason := why_unsupported():
        supported = ", ".join(f"torch {t} with triton {k}" for t, k in KNOWN_TORCH.items())
        raise EnvironmentLacking(
            "compiling for a GPU where there is none leans on torch's internals",
            expected=f"a CUDA build of a version that they are known of ({supported})",
            got=reason,
            remedy="Install that version, or compile on a machine with the GPU",
        )


def find_toolkit(profile: GpuProfile, *, ptx: bool = False) -> Toolkit:
    """Return the tools to compile for `profile`, with `fatbinary` where `ptx` is wanted.

    Raises `EnvironmentLacking`, naming what is missing and what brings it.
    """
    require_known_torch()
    if ptx and not can_add_ptx():
        raise EnvironmentLacking(
            "no fat binaries can be made of the kernels", expected="torch 2.13 or newer",
            got=f"torch {torch.__version__}, which asks for nvcc",
            remedy="Name one GPU in each target, or build with a newer torch",
        )  # fmt: skip
    return Toolkit(
        headers=_find_headers(),
        ptxas=find_ptxas(profile),
        compiler=require_compiler(),
        fatbinary=require_fatbinary() if ptx else None,
    )


@contextmanager
def link_driver_stub(compiler: str) -> Iterator[None]:
    """Let the body link what stands for the driver's library, where no toolkit's is found first.

    It lies beside Inductor's own files. The environment says where, because Inductor hashes its own
    flags into the names of what it makes, which nothing of the place may reach.
    """
    stub = write_driver_stub(compiler, Path(cache_dir()) / "handoff-driver")
    library_path = os.pathsep.join(filter(None, [os.environ.get("LIBRARY_PATH"), str(stub.parent)]))
    with patch_environment({"LIBRARY_PATH": library_path}):
        yield


def write_driver_stub(compiler: str, folder: Path) -> Path:
    """Write a `libcuda.so` to `folder` that stands for the driver's while linking; return it.

    Its name for the dynamic linker is the driver's own, so that the package loads the driver's.

    Raises `EnvironmentLacking` where the compiler makes no shared library.
    """
    library = folder / "libcuda.so"
    folder.mkdir(parents=True, exist_ok=True)
    # Made apart and put there at once, since another process may link to it meanwhile.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source, built = Path(scratch) / "libcuda.c", Path(scratch) / "libcuda.so"
        source.write_text("".join(f"void {name}(void) {{}}\n" for name in _DRIVER_FUNCTIONS))
        command = [compiler, "-x", "c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
        command += ["-o", str(built), str(source)]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if not completed.returncode:
            built.replace(library)
    if completed.returncode:
        raise EnvironmentLacking(
            f"{compiler} makes no shared library", expected="one that stands for the driver's",
            got=completed.stderr.strip()[-200:],
            remedy="Install a whole g++ and run the command again",
        )  # fmt: skip
    return library


def _find_headers() -> tuple[Path, ...]:
    """Return the folders that hold CUDA's headers: those of torch's own wheels, then Triton's.

    The wheel of the CUDA runtime leaves `crt/` to another, which nothing that torch depends on
    brings; Triton carries a whole set, of a minor version of its own.
    """
    major = str(torch.version.cuda).partition(".")[0]
    wheels = _package_folders("nvidia")
    candidates = [folder / f"cu{major}" / "include" for folder in wheels]
    candidates += [f / "backends" / "nvidia" / "include" for f in _package_folders("triton")]
    folders = tuple(f for f in candidates if f.is_dir() and _cuda_major(f) in (None, major))
    missing = [name for name in _HEADERS if not any((f / name).is_file() for f in folders)]
    if missing:
        raise EnvironmentLacking(
            "CUDA's headers are not whole", expected=f"{', '.join(_HEADERS)} of CUDA {major}",
            got=f"no {', '.join(missing)}",
            remedy=f"Install the wheels nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl "
            f"of CUDA {major}",
        )  # fmt: skip
    return folders


def _cuda_major(folder: Path) -> str | None:
    header = folder / "cuda.h"
    match = _CUDA_VERSION.search(header.read_text(errors="replace")) if header.is_file() else None
    return str(int(match.group(1)) // 1000) if match else None


def find_ptxas(profile: GpuProfile) -> Path:
    """Return the assembler that Triton will call for this capability, and see that it runs."""
    # Imported by name, because a CPU build of torch brings no Triton for mypy to look at.
    backend = import_module("triton.backends.nvidia.compiler")
    try:
        tool = backend.get_ptxas(profile.capability)
        subprocess.run([tool.path, "--version"], check=True, capture_output=True, timeout=30)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        raise EnvironmentLacking(
            f"Triton has no assembler for {profile.slug}", expected="a ptxas that runs",
            got=str(error)[:200], remedy="Install the triton wheel that torch depends on again",
        ) from error  # fmt: skip
    return Path(tool.path)


def _package_folders(name: str) -> list[Path]:
    spec = find_spec(name)
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
