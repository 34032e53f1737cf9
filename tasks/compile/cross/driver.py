"""A GPU that isn't here: what it says of itself, as its driver, and what a cubin needs of it.

A driver reports registers and local memory once it has loaded a kernel (`cuFuncGetAttribute`). The
same numbers stand in the cubin's `.nv.info` section, a list of attributes: one byte of format, one
of kind, two of size or value, then the value. Seen with ptxas 12.9 and 13.4, whose `-v` says the
same; the tests compare.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NoReturn

from handoff.artifacts.machine.gpu import GpuProfile
from handoff.tasks.compile.cross.inspect_binary import read_elf

_ATTRIBUTE = struct.Struct("<BBH")
_SIZED = 4  # the format whose third field is a size, not a value
_FRAME_SIZE, _REGISTERS = 0x11, 0x2F


@dataclass(frozen=True)
class KernelResources:
    """What one kernel takes: the GPU it is for, registers of a thread, bytes of local memory."""

    name: str
    capability: int
    registers: int
    frame_bytes: int


def read_resources(cubin: bytes) -> KernelResources:
    """Return what the one kernel of a cubin takes; raise `ValueError` where it doesn't say.

    A kernel's frame is what its thread keeps in local memory: spilled registers, and arrays that
    are indexed by a value.
    """
    elf = read_elf(cubin)
    kernels = [s.name.removeprefix(".text.") for s in elf.sections if s.name.startswith(".text.")]
    info = elf.section(".nv.info")
    if len(kernels) != 1 or info is None:
        raise ValueError(f"expected a cubin of one kernel, got {len(kernels)}")
    registers: list[int] = []
    frames: list[int] = []
    at = 0
    while at + _ATTRIBUTE.size <= len(info.data):
        layout, kind, size = _ATTRIBUTE.unpack_from(info.data, at)
        at += _ATTRIBUTE.size
        if layout != _SIZED:
            continue
        if kind in (_REGISTERS, _FRAME_SIZE):
            _, value = struct.unpack_from("<II", info.data, at)
            (registers if kind == _REGISTERS else frames).append(value)
        at += size
    if not registers:
        raise ValueError(f"expected the registers of {kernels[0]} in .nv.info, got none")
    # A kernel that calls functions lists each of them; the hungriest counts.
    return KernelResources(kernels[0], elf.capability, max(registers), max(frames, default=0))


class PretendedUtilities:
    """What Triton asks the CUDA driver for: a device's properties, and a kernel's once loaded."""

    def __init__(self, profile: GpuProfile) -> None:
        """Answer for this GPU."""
        self._profile = profile

    def get_device_properties(self, _device: int) -> dict[str, int]:
        """Return the properties under the names of Triton's driver."""
        return {
            "max_shared_mem": self._profile.shared_memory_per_block_optin,
            "max_num_regs": self._profile.registers_per_multiprocessor,
            "multiprocessor_count": self._profile.multiprocessors,
            "warpSize": self._profile.warp_size,
        }

    def load_binary(
        self, _name: str, kernel: bytes, _shared: int, _device: int
    ) -> tuple[None, None, int, int, int]:
        """Return no module and no function, then registers, spilled ones and threads of a block.

        The numbers are the ones that a driver gives, read out of the cubin.
        """
        resources = read_resources(kernel)
        spilled = resources.frame_bytes // 4
        return None, None, resources.registers, spilled, self._profile.max_threads_per_block


class PretendedDriver:
    """The active driver of Triton while a GPU is pretended."""

    def __init__(self, profile: GpuProfile) -> None:
        """Answer for this GPU, as device 0."""
        self._profile = profile
        self.utils = PretendedUtilities(profile)

    def get_current_target(self) -> object:
        """Return what Triton compiles for."""
        target = import_module("triton.backends.compiler").GPUTarget
        return target("cuda", self._profile.capability, self._profile.warp_size)

    def get_current_device(self) -> int:
        """Return the one device that there is."""
        return 0

    def launcher_cls(self, _source: object, _metadata: object) -> Any:  # noqa: ANN401 - Triton's
        """Return what stands for a kernel's launcher, and can't launch it."""

        def refuse(*_args: object, **_kwargs: object) -> NoReturn:
            raise RuntimeError("a kernel was launched where there is no GPU")

        return refuse


def torch_properties(profile: GpuProfile) -> SimpleNamespace:
    """Return what `torch.cuda.get_device_properties` would, under its names."""
    return SimpleNamespace(
        name=profile.name,
        major=profile.major,
        minor=profile.minor,
        multi_processor_count=profile.multiprocessors,
        regs_per_multiprocessor=profile.registers_per_multiprocessor,
        max_threads_per_multi_processor=profile.max_threads_per_multiprocessor,
        max_threads_per_block=profile.max_threads_per_block,
        warp_size=profile.warp_size,
        shared_memory_per_block=profile.shared_memory_per_block,
        shared_memory_per_block_optin=profile.shared_memory_per_block_optin,
        shared_memory_per_multiprocessor=profile.shared_memory_per_multiprocessor,
        L2_cache_size=profile.l2_bytes,
        total_memory=profile.total_memory,
    )
