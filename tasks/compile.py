"""Compile: an exported program and a target become a package, by AOTInductor."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch._inductor.compile_fx  # what takes 5 s to import, done before the first job
from torch.export import ExportedProgram

from artifacts.digest import Digest, digest_file
from artifacts.errors import BlessingRefused, EnvironmentLacking, HandoffError
from artifacts.manifest import PackageFile
from artifacts.steps import AssumedRange, CompileJob, CompileResult, Reused
from artifacts.target import Fit, Target, host_cpu_flags, native_cpu_target
from tasks.compiling.cache import CacheEntry, find_entry, keep_entry
from tasks.compiling.input_checks import checked_inputs
from tasks.compiling.instructions import find_instruction_sets
from tasks.compiling.key import compilation_key, digest_weights, has_own_operators_only
from tasks.compiling.packages import extract_library, write_package
from tasks.compiling.place import fixed_place
from tasks.compiling.vector_isa import vector_isa, vectorised_for
from tasks.compiling.weights import (
    KEEPING_OPTIONS,
    find_weights,
    put_weights,
    weights_kept_apart,
)
from tasks.loading import PACKAGE, SHARED_LIBRARY

# The flags of /proc/cpuinfo that stand for instructions which a compiler may emit.
_INSTRUCTION_FLAG = re.compile(
    r"avx.*|amx_.*|ssse3|sse.*|fma|f16c|bmi[12]|abm|movbe|adx|v?aes|v?pclmulqdq|sha_ni|gfni|popcnt"
)


def prepare() -> None:
    """Do what every compilation needs and none depends on, before the first job is known.

    Which vector instructions can be compiled and run here is found out by compiling and running
    some, which takes seconds with a cache of its own.
    """
    level = os.environ.get("ATEN_CPU_CAPABILITY")
    if level in ("avx2", "avx512"):
        vector_isa(level)


def run(job: CompileJob) -> CompileResult:
    """Write `model.pt2` and the `model.so` in it to `job.folder`, all or nothing.

    A package of the same graph, options, target and toolchain that lies in `job.cache` is taken,
    with this program's weights put in. The process has to run with `ATEN_CPU_CAPABILITY` set to
    the target's level, which is what ATen goes by; the compiler's `-march` alone doesn't hold it
    back.
    """
    toolchain = _toolchain(_require_compiler())
    program = torch.export.load(job.program)
    key = compilation_key(program, job, toolchain)
    with _built_apart(job.folder) as building:
        began = time.monotonic()
        reused, assumed = _reuse(job, key, program, building)
        if not reused:
            assumed = _build(job, key, program, building)
        seconds = time.monotonic() - began
        used = find_instruction_sets(building / SHARED_LIBRARY)
        _require_level(job.target, used)
    files = tuple(
        PackageFile(f"{job.target.slug}/{name}", digest_file(path), path.stat().st_size)
        for name in (PACKAGE, SHARED_LIBRARY)
        for path in [job.folder / name]
    )
    fit = _fit(job.target)
    return CompileResult(files, fit, seconds, toolchain, used, reused, assumed)


_Assumed = tuple[AssumedRange, ...]


def _reuse(
    job: CompileJob, key: Digest, program: ExportedProgram, building: Path
) -> tuple[Reused, _Assumed]:
    """Fill `building` from the cache; return what was reused ('' for nothing) and was assumed."""
    found = find_entry(job.cache, key) if job.cache and not job.fresh else None
    if found is None:
        return "", ()
    entry, package = found
    weights = digest_weights(program)
    if weights != entry.weights and not entry.slots:
        return "", ()
    library = building / SHARED_LIBRARY
    extract_library(package, library)
    if weights == entry.weights:
        shutil.copyfile(package, building / PACKAGE)
        return "package", entry.assumed
    put_weights(entry.slots, program.state_dict, library)
    write_package(package, library, building / PACKAGE)
    return "code", entry.assumed


def _build(job: CompileJob, key: Digest, program: ExportedProgram, building: Path) -> _Assumed:
    """Compile, and keep what came out in the cache where that is sound."""
    package, library = building / PACKAGE, building / SHARED_LIBRARY
    with fixed_place(key) as place:
        # There, too: the path of the package is written into it.
        original = place / PACKAGE
        assumed = _compile(job, program, original)
        extract_library(original, library)
        write_package(original, library, package)
        slots = find_weights(program, original, library) or ()
    if job.cache is not None and has_own_operators_only(program):
        entry = CacheEntry(digest_file(package), digest_weights(program), slots, assumed)
        keep_entry(job.cache, key, package, entry)
    return assumed


@contextmanager
def _built_apart(folder: Path) -> Iterator[Path]:
    """Give a folder beside `folder` that takes its place once the body has filled it, or is gone.

    What a process left there that was killed is removed first.
    """
    building = folder.with_name(folder.name + ".building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        yield building
        _flush(building)
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _compile(job: CompileJob, program: ExportedProgram, package: Path) -> _Assumed:
    # A fresh dict: torch writes into the one that it is given.
    options = {**KEEPING_OPTIONS, **job.options}
    if has_march_option():
        options["cpp.march"] = job.target.march
    try:
        # Inductor leaves freezing out, without a word, where gradients are enabled.
        with (
            torch.no_grad(), checked_inputs(program) as assumed, vectorised_for(job.target),
            weights_kept_apart(),
        ):  # fmt: skip
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(package), inductor_configs=options
            )
    except HandoffError:
        raise
    except Exception as error:
        raise _compile_failed(job, error) from error
    return tuple(assumed)


def _require_level(target: Target, used: tuple[str, ...]) -> None:
    """Raise `BlessingRefused` for a package that uses instructions which its target may lack."""
    beyond = sorted(set(used) - target.cpu_flags)
    if not has_march_option() and target == native_cpu_target():
        # This torch compiles for the building machine's own processor, and `_fit` says so.
        beyond = sorted(set(beyond) - host_cpu_flags())
    if beyond:
        raise BlessingRefused(
            f"the package for {target.slug} needs more than its target has",
            expected=f"instructions of {target.march} ({', '.join(sorted(target.cpu_flags))})",
            got=", ".join(beyond),
            remedy="Name a target that has them, or build with torch 2.13 or newer",
        )


def _require_compiler() -> str:
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


def _compile_failed(job: CompileJob, error: Exception) -> BlessingRefused:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return BlessingRefused(
        f"AOTInductor could not compile the model for {job.target.slug}",
        expected="a package",
        got=f"{type(error).__name__}: {' '.join(lines[:2])[:400]}",
        remedy="Leave this target or the recipe's options out, or run again with --debug",
    )


def _flush(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def has_march_option() -> bool:
    """Tell whether this torch lets the compiler's level be chosen (2.13 does, 2.11 does not)."""
    return hasattr(torch._inductor.config.cpp, "march")


def _fit(target: Target) -> Fit:
    """Return what the package needs of a machine: the target's level.

    A torch that always compiles for the building machine's own processor makes packages that may
    need whatever that processor has.
    """
    if not has_march_option():
        native = {flag for flag in host_cpu_flags() if _INSTRUCTION_FLAG.fullmatch(flag)}
        return Fit(tuple(sorted(native)), torch=torch.__version__, machine=platform.machine())
    flags = tuple(sorted(target.cpu_flags))
    return Fit(cpu_flags=flags, torch=torch.__version__, machine=platform.machine())


def _toolchain(compiler: str) -> dict[str, str]:
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=True, timeout=30
    )
    return {
        "torch": torch.__version__,
        "compiler": version.stdout.splitlines()[0],
        "glibc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
    }
