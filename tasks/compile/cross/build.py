"""Build: an exported CPU program and a GPU that isn't here become a package for that GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
import torch._inductor
from torch.export import ExportedProgram

from handoff.artifacts.errors import BlessingRefused, HandoffError, UsageProblem
from handoff.artifacts.machine.gpu import GpuProfile
from handoff.artifacts.recipe.gpu_generations import FIRST_SPECIFIC
from handoff.artifacts.recipe.target import CudaTarget
from handoff.tasks.compile.caching.compiled_interface import link_interface_object
from handoff.tasks.compile.cross.assembling import Assembler
from handoff.tasks.compile.cross.inspect_binary import Inspection, inspect_binary
from handoff.tasks.compile.cross.kernels import KernelChoice
from handoff.tasks.compile.cross.retarget import Weights, retarget
from handoff.tasks.compile.cross.simulated_gpu import pretend_gpu
from handoff.tasks.compile.cross.toolkit import (
    can_add_ptx,
    find_ptxas,
    find_toolkit,
    link_driver_stub,
)
from handoff.tasks.compile.machine.host import SHIPPED_OPTIONS, has_march_option
from handoff.tasks.compile.messages import KernelSource
from handoff.tasks.compile.reading.literals import refusal_within
from handoff.tasks.compile.workdir import staged_folder
from handoff.tasks.verify.loading import PACKAGE

# Options of AOTInductor that need a device to time on, or weights with values while compiling.
NEED_A_GPU = frozenset({
    "freezing", "max_autotune", "max_autotune_pointwise", "max_autotune_gemm", "shape_padding",
    "coordinate_descent_tuning", "benchmark_kernel", "benchmark_fusion",
})  # fmt: skip


@dataclass(frozen=True)
class CrossBuildResult:
    """A package that was written, what was found in its bytes, and how it came about."""

    package: Path
    size_bytes: int
    seconds: float
    kernels: tuple[KernelChoice, ...]
    inspection: Inspection


def compile_for(
    program: ExportedProgram,
    profile: GpuProfile,
    folder: Path,
    *,
    further: tuple[GpuProfile, ...] = (),
    ptx: bool = False,
    options: Mapping[str, object] | None = None,
) -> CrossBuildResult:
    """Write `model.pt2` for this GPU to `folder`, kernels and weights embedded, all or nothing.

    With `ptx`, each kernel's PTX is put beside its machine code, from which a driver can compile it
    for a newer GPU (not for sm_90 and sm_100, whose PTX is for that very GPU). The kernels have
    machine code for `further` GPUs, too, assembled from that PTX; their configurations are chosen
    for `profile` alone, which has to be within the limits of all. `options` are
    AOTInductor's, of those that need no GPU. The host's code is for x86-64-v3, where this torch
    lets that be chosen. Nothing is timed; `tasks.compile.cross.kernels` says how configurations are
    chosen. `program` is left as it is.

    Raises `EnvironmentLacking` for a torch that isn't known, or tools that are missing,
    `UsageProblem` for an option that needs a GPU, and `BlessingRefused` where the program can't be
    compiled, or the bytes say another GPU than those that were asked for.
    """
    ptx = ptx or bool(further)
    settings = inductor_options(options or {}, ptx=ptx)
    toolkit = find_toolkit(profile, ptx=ptx)
    for one in further:
        find_ptxas(one)
    began = time.monotonic()
    retargeted = retarget(program)
    with (
        staged_folder(folder) as staging,
        torch.no_grad(),
        pretend_gpu(
            profile,
            weights=Weights(program, retargeted),
            toolkit=toolkit,
            assembler=Assembler(further),
        ) as kernels,
        link_driver_stub(toolkit.compiler),
        link_interface_object(),
    ):
        _compile(retargeted, staging / PACKAGE, settings, profile)
        inspection = inspect_binary(staging / PACKAGE)
        require_kernels_for((profile, *further), kernels, inspection)
    package = folder / PACKAGE
    seconds = time.monotonic() - began
    return CrossBuildResult(package, package.stat().st_size, seconds, tuple(kernels), inspection)


def inductor_options(options: Mapping[str, object], *, ptx: bool) -> dict[str, object]:
    """Return Inductor's options; raise `UsageProblem` for one that can't be had without a GPU."""
    refused = sorted(name for name, value in options.items() if name in NEED_A_GPU and value)
    if refused:
        raise UsageProblem(
            f"{', '.join(refused)} can't be had where there is no GPU",
            expected="options that need neither timings nor weights with values",
            got=", ".join(refused),
            remedy="Leave it out, or compile on a machine with the GPU",
        )
    return {
        **options,
        # Whatever the environment has set them to.
        **dict.fromkeys(sorted(NEED_A_GPU), False),
        **SHIPPED_OPTIONS,
        "compile_threads": 1,
        "triton.autotune_at_compile_time": True,
        "aot_inductor.embed_kernel_binary": True,
        "aot_inductor.emit_multi_arch_kernel": ptx,
        # It loads the kernel into a device.
        "use_static_triton_launcher": False,
        # A small constant would be written into the code, and here it has no value.
        "always_keep_tensor_constants": True,
        # What is remembered on disk of a pretended GPU is nothing to a real one.
        "fx_graph_cache": False,
        "autotune_local_cache": False,
        "cpp.simdlen": 256,
        **({"cpp.march": "x86-64-v3"} if has_march_option() else {}),
    }


def _compile(
    program: ExportedProgram, package: Path, options: dict[str, object], profile: GpuProfile
) -> None:
    try:
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(package), inductor_configs=options
        )
    except HandoffError:
        raise
    except Exception as error:
        if refused := refusal_within(error):
            raise refused from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise BlessingRefused(
            f"AOTInductor could not compile the model for {profile.slug}", expected="a package",
            got=f"{type(error).__name__}: {' '.join(lines[:2])[:400]}",
            remedy="Leave this target or the options out, or compile on a machine with the GPU",
        ) from error  # fmt: skip


def require_kernels_for(
    profiles: Sequence[GpuProfile], kernels: Sequence[KernelChoice], inspection: Inspection
) -> None:
    """Raise `BlessingRefused` unless a package holds those kernels, for these GPUs and no others.

    Each kernel needs machine code for each GPU: a driver would compile the PTX where it is lacking.
    """
    compiled = {kernel.name for kernel in kernels}
    found = {kernel.capability for kernel in inspection.kernels}
    expected = {profile.capability for profile in profiles}
    if inspection.names != compiled or found - expected:
        slugs = " and ".join(profile.slug for profile in profiles)
        others = ", ".join(f"sm_{capability}" for capability in sorted(found)) or "no GPU"
        raise _unexpected_bytes_error(
            f"{len(compiled)} kernels for {slugs}", f"{len(inspection.names)} for {others}"
        )
    present = {(one.name, one.capability) for one in inspection.kernels if one.kind == "cubin"}
    for name, capability in product(sorted(compiled), sorted(expected)):
        if (name, capability) not in present:
            actual = ", ".join(f"sm_{one}" for one in sorted(expected) if (name, one) in present)
            raise _unexpected_bytes_error(
                f"machine code of {name} for sm_{capability}", f"that for {actual}"
            )
    # A linker may leave out what it thinks isn't used; the package would then not load.
    missing = {"libcuda.so.1", "libtorch_cuda.so"} - set(inspection.needed) if kernels else set()
    if missing:
        raise _unexpected_bytes_error("a library that loads the driver", f"no {min(missing)}")


def _unexpected_bytes_error(expected: str, got: str) -> BlessingRefused:
    return BlessingRefused(
        "the package's bytes are not what was compiled", expected=expected, got=got,
        remedy="Run again; if it stays, report it with the versions of torch and triton",
    )  # fmt: skip


@dataclass(frozen=True)
class GpuPackage:
    """The package that was written, its kernels in words, and the versions of CUDA's tools.

    `sources` say what the kernels of one for a GPU that isn't here were compiled from.
    """

    package: Path
    kernels: tuple[str, ...]
    toolchain: dict[str, str]
    sources: tuple[KernelSource, ...] = ()


def compile_for_gpu(
    program: ExportedProgram,
    target: CudaTarget,
    options: Mapping[str, object],
    folder: Path,
) -> GpuPackage:
    """Write the package of `program` for the target to `folder`; raise as `compile_for` does.

    The recipe's options that need a GPU to time on are left out: they are for the CPU targets
    beside this one. PTX is put beside the machine code where a newer GPU could take it, and this
    torch can.
    """
    usable = {name: value for name, value in options.items() if name not in NEED_A_GPU}
    ptx = target.sm < FIRST_SPECIFIC and can_add_ptx()
    built = compile_for(
        program, target.profile, folder, further=target.profiles[1:], ptx=ptx, options=usable
    )
    toolchain = {"cuda": str(torch.version.cuda)}
    sources = tuple(kernel.source for kernel in built.kernels)
    return GpuPackage(
        built.package, tuple(map(_describe_kernel, built.kernels)), toolchain, sources
    )


def _describe_kernel(kernel: KernelChoice) -> str:
    return (
        f"{kernel.name}: {kernel.configuration} (of {kernel.candidates}), {kernel.registers} "
        f"registers, {kernel.shared_bytes} bytes of shared memory, "
        f"{kernel.resident_warps} warps resident"
        + "".join(f"; {other}" for other in kernel.further)
    )
