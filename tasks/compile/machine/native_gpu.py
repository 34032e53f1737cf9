"""Compile for the GPU that is in this machine: kernels are timed, and nothing is pretended.

It does what torch documents (`torch.export.passes.move_to_device_pass`,
`torch._inductor.aoti_compile_and_package`). How far it was seen to go on a GPU is in docs/gpu.md;
the tests with the marker `cuda` are its proof, where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.recipe.target import CudaTarget
from handoff.tasks.compile.cross.build import GpuPackage
from handoff.tasks.compile.cross.inspect_binary import inspect_binary
from handoff.tasks.compile.cross.toolkit import link_driver_stub
from handoff.tasks.compile.machine.host import (
    SHIPPED_OPTIONS,
    has_march_option,
    require_compiler,
)

# With its number: an assertion of a tensor's device distinguishes `cuda` and `cuda:0`.
DEVICE = "cuda:0"


def can_compile(target: CudaTarget) -> bool:
    """Return whether the first GPU here is of that very capability, and torch can use it.

    What is for several is timed on none: the others would get a configuration of that one.
    """
    if target.further or not (target.is_here and torch.cuda.is_available()):
        return False
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor == target.sm


def compile_natively(
    program: ExportedProgram, target: CudaTarget, options: Mapping[str, object], package: Path
) -> GpuPackage:
    """Write the package of `program` for the GPU here to the file `package`.

    Kernels and weights are embedded, the host's code is for x86-64-v3. Raises `BlessingRefused`
    where the kernels in the written bytes are for another GPU.
    """
    retargeted = move_to_device_pass(program, DEVICE)
    march = {"cpp.march": target.march} if has_march_option() else {}
    with torch.no_grad(), link_driver_stub(require_compiler()):
        torch._inductor.aoti_compile_and_package(
            retargeted,
            package_path=str(package),
            inductor_configs={
                **SHIPPED_OPTIONS,
                **options,
                **march,
                "cpp.simdlen": 256,
                # Headers that are used once aren't worth it.
                "aot_inductor.precompile_headers": False,
                # In this process, where what is written is read first (`check_sources`).
                "compile_threads": 1,
                "triton.autotune_at_compile_time": True,
                "aot_inductor.embed_kernel_binary": True,
            },
        )
    inspection = inspect_binary(package)
    if inspection.capabilities - {target.sm}:
        raise BlessingRefused(
            "the package's kernels are not for the GPU that was asked for",
            expected=f"kernels for sm_{target.sm}",
            got=", ".join(f"sm_{found}" for found in sorted(inspection.capabilities)),
            remedy="Report it with the versions of torch and triton",
        )
    name = torch.cuda.get_device_name()
    descriptions = tuple(f"{kernel}: timed on {name}" for kernel in sorted(inspection.names))
    return GpuPackage(package, descriptions, {"cuda": str(torch.version.cuda), "gpu": name})
