"""What a release has of cross-compilation: one target in, a package and what is to be told out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.export import ExportedProgram

from handoff.artifacts.recipe.target import CudaTarget
from handoff.tasks.compile.cross.build import NEED_A_GPU, compile_for
from handoff.tasks.compile.cross.kernels import KernelChoice
from handoff.tasks.compile.cross.toolkit import can_add_ptx
from handoff.tasks.compile.messages import KernelSource

# From here on PTX is for the very GPU (`sm_90a`), and no newer one can take it.
_FIRST_SPECIFIC = 90


@dataclass(frozen=True)
class GpuPackage:
    """The package that was written, its kernels in words, and the versions of CUDA's tools.

    `sources` tell what the kernels of one for a GPU that isn't here were compiled from.
    """

    package: Path
    kernels: tuple[str, ...]
    toolchain: dict[str, str]
    sources: tuple[KernelSource, ...] = ()


def compile_for_gpu(
    program: ExportedProgram, target: CudaTarget, options: Mapping[str, object], folder: Path
) -> GpuPackage:
    """Write the package of `program` for the target to `folder`; raise as `compile_for` does.

    The recipe's options that need a GPU to time on are left out: they are for the CPU targets
    beside this one. PTX is put beside the machine code where a newer GPU could take it, and this
    torch can.
    """
    kept = {name: value for name, value in options.items() if name not in NEED_A_GPU}
    ptx = target.sm < _FIRST_SPECIFIC and can_add_ptx()
    built = compile_for(program, target.profile, folder, ptx=ptx, options=kept)
    toolchain = {"cuda": str(torch.version.cuda)}
    sources = tuple(kernel.source for kernel in built.kernels)
    return GpuPackage(built.package, tuple(map(_told, built.kernels)), toolchain, sources)


def _told(kernel: KernelChoice) -> str:
    return (
        f"{kernel.name}: {kernel.configuration} (of {kernel.candidates}), {kernel.registers} "
        f"registers, {kernel.shared_bytes} bytes of shared memory, "
        f"{kernel.resident_warps} warps resident"
    )
