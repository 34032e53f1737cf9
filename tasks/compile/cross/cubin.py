"""Read what a compiled kernel needs of a multiprocessor out of its cubin, without a driver.

A driver tells registers and local memory once it has loaded a kernel (`cuFuncGetAttribute`). The
same numbers stand in the cubin's `.nv.info` section, a list of attributes: one byte of format, one
of kind, two of size or value, then the value. Seen with ptxas 12.9 and 13.4, whose `-v` says the
same; the tests compare.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from handoff.tasks.compile.cross.elf import read_elf

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
