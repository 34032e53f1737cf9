"""Compile: an exported program and a target become a package, by AOTInductor.

What Inductor writes around its kernels is one function with a call for each operator, and a
constructor with a dozen assignments for each weight. g++ takes time with the square of either: of
5000 operators, the wrapper took more than 300 s at `-O1`, which is torch's choice, 104 s at `-O0`,
of which 75 went into the registers of the constructor alone, and 29 s with that constructor in
parts (torch 2.15.0, g++ 12, one core of an AMD EPYC). A call of a thousand operators on 2 x 16
numbers takes 1.24 times as long then (1.09 to 1.35), 0.24 us an operator: the wrapper is a small
part of what a large graph computes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._inductor.compile_fx  # what takes 5 s to import, done before the first job
from torch._inductor import config
from torch._inductor.codecache import AotCodeCompiler
from torch.export import ExportedProgram

from handoff.artifacts.digest import Digest, digest_file
from handoff.artifacts.errors import BlessingRefused, HandoffError
from handoff.artifacts.files.locks import lock_folder
from handoff.artifacts.recipe.target import ArmTarget, CudaTarget, Target
from handoff.artifacts.release.manifest import PackageFile
from handoff.artifacts.serve.archive import EXTERN_KERNELS_FILE
from handoff.tasks.compile.arm.cross_compilation import arm_options, use_arm_compiler
from handoff.tasks.compile.arm.sysroot import find_sysroot
from handoff.tasks.compile.caching.cache import (
    PackageMetadata,
    compilation_key,
    digest_code,
    digest_weights,
    find_entry,
    find_reusable_part,
    has_own_operators_only,
    keep_entry,
    take_entry,
)
from handoff.tasks.compile.caching.compiled_interface import link_interface_object
from handoff.tasks.compile.caching.shared_tools import reset_header_folder, use_headers_from
from handoff.tasks.compile.cross.build import compile_for_gpu
from handoff.tasks.compile.input_checks import enable_input_checks
from handoff.tasks.compile.int8_sums import lower_int8_sums
from handoff.tasks.compile.machine.host import (
    SHIPPED_OPTIONS,
    compiler_for,
    fit_of,
    has_march_option,
    require_level,
    toolchain_of,
)
from handoff.tasks.compile.machine.native_gpu import can_compile, compile_natively
from handoff.tasks.compile.machine.tiles import request_amx_tiles
from handoff.tasks.compile.machine.vector_isa import restrict_vector_isa, vector_isa
from handoff.tasks.compile.messages import (
    AssumedRange,
    CompileJob,
    CompileResult,
    KernelSource,
    ReusedPart,
)
from handoff.tasks.compile.packages import extract_kernels, extract_library, write_package
from handoff.tasks.compile.packing import leave_linears_to_mkl, pack_convolutions
from handoff.tasks.compile.patching import patch_attribute
from handoff.tasks.compile.reading.cpp_source import (
    find_atomic_sums,
    require_int8,
    require_int8_level,
)
from handoff.tasks.compile.reading.instructions import find_arm_features, find_instruction_sets
from handoff.tasks.compile.reading.literals import check_sources, prepare_reading, refusal_within
from handoff.tasks.compile.reading.source_words import prefix_weight_names
from handoff.tasks.compile.weights import (
    KEEPING_OPTIONS,
    disable_weight_folding,
    find_weights,
)
from handoff.tasks.compile.workdir import private_cache_folder, staged_folder
from handoff.tasks.optimize.kernels import compiler_options
from handoff.tasks.optimize.programs import load_program
from handoff.tasks.verify.loading import PACKAGE, SHARED_LIBRARY

# Operators from which the compiler's time is worth more than a call's. At 1000 it takes 22 s.
LARGE_PROGRAM_OPERATORS = 2000
_LARGE_PROGRAM_OPTIONS = {"aot_inductor.compile_wrapper_opt_level": "O0"}
_WEIGHTS_AT_ONCE = 64
_FIELD = re.compile(r"\s*constants_info_\[\d+\]\.(\w+) = .*;\s*")
# A function of its own, however often it is called.
_BEGIN, _END = "    [&]() __attribute__((noinline)) {", "    }();"


@contextmanager
def split_large_programs(program: ExportedProgram) -> Iterator[None]:
    """Let what is compiled from a program of many operators in the body be compiled fast.

    Options that are given to Inductor go before what is chosen here; smaller programs are compiled
    as ever.
    """
    if sum(node.op == "call_function" for node in program.graph.nodes) <= LARGE_PROGRAM_OPERATORS:
        yield
        return
    original = AotCodeCompiler.compile

    def compile_split(graph: Any, code: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return original(graph, split_constructor(code), *args, **kwargs)

    with (
        patch_attribute(AotCodeCompiler, "compile", staticmethod(compile_split)),
        config.patch(_LARGE_PROGRAM_OPTIONS),
    ):
        yield


def split_constructor(code: str) -> str:
    """Return generated C++ with the description of every 64 weights in a function of its own."""
    lines: list[str] = []
    weights, is_open = 0, False
    for line in code.split("\n"):
        field = _FIELD.fullmatch(line)
        if field and field[1] == "name":
            if is_open and weights % _WEIGHTS_AT_ONCE == 0:
                lines.append(_END)
                is_open = False
            if not is_open:
                lines.append(_BEGIN)
                is_open = True
            weights += 1
        elif is_open and not field:
            lines.append(_END)
            is_open = False
        lines.append(line)
    return "\n".join(lines)


def prepare() -> None:
    """Do what every compilation needs and none depends on, before the first job is known."""
    prepare_reading()
    reset_header_folder()


def run(job: CompileJob) -> CompileResult:
    """Write `model.pt2` and the `model.so` in it to `job.folder`, all or nothing.

    Beside them lies `model.json` where the library has operators called by name.

    A package of the same graph, options, target and toolchain that lies in `job.cache` is taken,
    with this program's weights put in. One for a GPU is compiled whether there is one here or not.
    The process has to be held to the target's level (`compile_variables`), which is what ATen and
    oneDNN go by; the compiler's `-march` alone doesn't hold them back.
    """
    toolchain = toolchain_of(compiler_for(job.target))
    program = load_program(job.program)
    require_int8_level(program, job.target)
    key = compilation_key(program, job, toolchain)
    with staged_folder(job.folder) as staging:
        began = time.monotonic()
        with use_headers_from(job.shared):
            compilation = _compile_or_reuse(job, key, program, staging)
        extract_kernels(staging / PACKAGE, staging / EXTERN_KERNELS_FILE)
        seconds = time.monotonic() - began
        used = _instruction_sets(job.target, staging / SHARED_LIBRARY)
        require_level(job.target, used)
    files = tuple(
        PackageFile(f"{job.target.slug}/{name}", digest_file(path), path.stat().st_size)
        for name in (PACKAGE, SHARED_LIBRARY, EXTERN_KERNELS_FILE)
        for path in [job.folder / name]
        if path.exists()
    )
    fit = fit_of(job.target, job.folder / SHARED_LIBRARY)
    return CompileResult(
        files, fit, seconds, {**toolchain, **compilation.toolchain}, used, compilation.reused,
        compilation.assumed, compilation.kernels, compilation.code, compilation.atomic_sums,
        compilation.sources,
    )  # fmt: skip


def _instruction_sets(target: Target, library: Path) -> tuple[str, ...]:
    if isinstance(target, ArmTarget):
        return find_arm_features(
            library, find_sysroot().disassembler if target.is_emulated else "objdump"
        )
    return find_instruction_sets(library)


@dataclass(frozen=True)
class _Compilation:
    """How the packages in the staging folder came about."""

    reused: ReusedPart = ""
    assumed: tuple[AssumedRange, ...] = ()
    kernels: tuple[str, ...] = ()
    toolchain: dict[str, str] = field(default_factory=dict)
    code: str = ""
    atomic_sums: tuple[str, ...] = ()
    sources: tuple[KernelSource, ...] = ()


def _compile_or_reuse(
    job: CompileJob, key: Digest, program: ExportedProgram, staging: Path
) -> _Compilation:
    if isinstance(job.target, CudaTarget):
        with (
            private_cache_folder() as scratch, enable_input_checks(program) as assumed,
            _target_vector_isa(job), split_large_programs(program), prefix_weight_names(),
            check_sources(),
        ):  # fmt: skip
            if can_compile(job.target):
                options = {**job.options, **compiler_options(program)}
                built = compile_natively(program, job.target, options, scratch / PACKAGE)
            else:
                built = compile_for_gpu(program, job.target, job.options, scratch / "package")
            _write_shipped_files(built.package, staging)
        return _Compilation(
            "", tuple(assumed), built.kernels, built.toolchain, sources=built.sources
        )
    return _reuse(job, key, program, staging) or _build(job, key, program, staging)


def _write_shipped_files(original: Path, staging: Path) -> None:
    extract_library(original, staging / SHARED_LIBRARY)
    write_package(original, staging / SHARED_LIBRARY, staging / PACKAGE)


def _reuse(
    job: CompileJob, key: Digest, program: ExportedProgram, staging: Path
) -> _Compilation | None:
    """Fill `staging` from the cache; return what came from there, or None for nothing."""
    if job.cache is None or job.fresh or not job.cache.is_dir():
        return None
    weights = digest_weights(program)
    with lock_folder(job.cache):
        entry = find_entry(job.cache, key)
        part = find_reusable_part(entry, weights) if entry else ""
        if entry is None or not part:
            return None
        tensors = {**program.constants, **program.state_dict}
        take_entry(job.cache, key, entry, tensors, staging)
    return _Compilation(
        part, entry.compiled.assumed, code=digest_code(entry.code, program),
        atomic_sums=entry.compiled.atomic_sums,
    )  # fmt: skip


def _build(job: CompileJob, key: Digest, program: ExportedProgram, staging: Path) -> _Compilation:
    """Compile, and keep what came out in the cache where that is sound."""
    with private_cache_folder() as scratch:
        # There, too, so that its path reaches no byte of it.
        original = scratch / PACKAGE
        assumed = compile_package(job, program, original)
        atomic_sums = find_atomic_sums(original)
        _write_shipped_files(original, staging)
        require_int8(program, original, staging / SHARED_LIBRARY)
        slots = find_weights(program, original, staging / SHARED_LIBRARY) or ()
    code = ""
    if job.cache is not None and has_own_operators_only(program):
        compiled = PackageMetadata(digest_weights(program), slots, assumed, atomic_sums)
        code = digest_code(keep_entry(job.cache, key, staging, compiled).code, program)
    return _Compilation("", assumed, code=code, atomic_sums=atomic_sums)


def compile_package(
    job: CompileJob, program: ExportedProgram, package: Path
) -> tuple[AssumedRange, ...]:
    """Compile `program` for the CPU target of `job` into the file `package`.

    Return what the compiler assumed of the inputs' ranges; raise `BlessingRefused` where it fails,
    and `EnvironmentLacking` where the machine's C++ compiler does.
    """
    assert not isinstance(job.target, CudaTarget)
    # A fresh dict: torch writes into the one that it is given.
    options = {
        **KEEPING_OPTIONS, **SHIPPED_OPTIONS, **job.options, **compiler_options(program)
    }  # fmt: skip
    if isinstance(job.target, ArmTarget):
        options |= arm_options(job.target, job.options)
    elif has_march_option():
        options["cpp.march"] = job.target.march
    lower_int8_sums()
    try:
        # Inductor leaves freezing out, without a word, where gradients are enabled.
        with (
            torch.no_grad(), enable_input_checks(program) as assumed,
            _target_vector_isa(job), disable_weight_folding(), pack_convolutions(),
            leave_linears_to_mkl(job.target), link_interface_object(),
            split_large_programs(program), request_amx_tiles(job.target), prefix_weight_names(),
            check_sources(),
        ):  # fmt: skip
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(package), inductor_configs=options
            )
    except HandoffError:
        raise
    except Exception as error:
        if refusal := refusal_within(error):
            raise refusal from error
        # A compiler that compiles nothing at all, any more, says nothing about the model.
        if not isinstance(job.target, ArmTarget):
            vector_isa(job.target.isa)
        raise _compile_error(job, error) from error
    return tuple(assumed)


@contextmanager
def _target_vector_isa(job: CompileJob) -> Iterator[None]:
    """Let Inductor write and compile for the target's vector instructions in the body.

    It asks for no other level then, and compiles no test program for each that the machine has.
    """
    host = job.target.host
    with (
        use_arm_compiler() if isinstance(host, ArmTarget) else restrict_vector_isa(host, job.shared)
    ):
        yield


def _compile_error(job: CompileJob, error: Exception) -> BlessingRefused:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return BlessingRefused(
        f"AOTInductor could not compile the model for {job.target.slug}",
        expected="a package",
        got=f"{type(error).__name__}: {' '.join(lines[:2])[:400]}",
        remedy="Leave this target or the recipe's options out, or run again with --debug",
    )
