"""The NVIDIA GPUs that a package can be compiled for, as data; and those of this machine.

What belongs to a compute capability (threads, blocks, registers and shared memory of a
multiprocessor) is from the CUDA C++ Programming Guide, section "Compute Capabilities", table
"Technical Specifications per Compute Capability". What belongs to a product (multiprocessors, L2,
memory) is from NVIDIA's datasheets and architecture papers: A100 (SXM, 80 GB), A10, L4, H100 (SXM,
80 GB) and B200. The H200 is an H100 with more memory; its profile is the smaller one's, since a
package for the one runs on the other.

The compiler is given these figures in place of a device's own. Code for another product of the same
compute capability is right all the same; only choices of speed rest on the figures that differ.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True)
class GpuProfile:
    """One GPU as a compiler sees it: sizes in bytes, the capability as 90 for 9.0.

    `shared_memory_per_block_optin` is what a block may use after asking for it,
    `shared_memory_per_block` what it may use without.
    """

    name: str
    capability: int
    multiprocessors: int
    max_threads_per_multiprocessor: int
    max_blocks_per_multiprocessor: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block_optin: int
    l2_bytes: int
    total_memory: int
    registers_per_multiprocessor: int = 64 * KIB
    max_threads_per_block: int = 1024
    shared_memory_per_block: int = 48 * KIB
    warp_size: int = 32

    @property
    def slug(self) -> str:
        """The compute capability as NVIDIA's tools name it: `sm_90`."""
        return f"sm_{self.capability}"

    @property
    def major(self) -> int:
        """The capability's first number: 9 for 9.0."""
        return self.capability // 10

    @property
    def minor(self) -> int:
        """The capability's second number: 0 for 9.0."""
        return self.capability % 10


PROFILES: dict[str, GpuProfile] = {
    profile.slug: profile
    for profile in (
        GpuProfile(
            name="NVIDIA A100-SXM4-80GB",
            capability=80,
            multiprocessors=108,
            max_threads_per_multiprocessor=2048,
            max_blocks_per_multiprocessor=32,
            shared_memory_per_multiprocessor=164 * KIB,
            shared_memory_per_block_optin=163 * KIB,
            l2_bytes=40 * MIB,
            total_memory=80 * GIB,
        ),
        GpuProfile(
            name="NVIDIA A10",
            capability=86,
            multiprocessors=72,
            max_threads_per_multiprocessor=1536,
            max_blocks_per_multiprocessor=16,
            shared_memory_per_multiprocessor=100 * KIB,
            shared_memory_per_block_optin=99 * KIB,
            l2_bytes=6 * MIB,
            total_memory=24 * GIB,
        ),
        GpuProfile(
            name="NVIDIA L4",
            capability=89,
            multiprocessors=58,
            max_threads_per_multiprocessor=1536,
            max_blocks_per_multiprocessor=24,
            shared_memory_per_multiprocessor=100 * KIB,
            shared_memory_per_block_optin=99 * KIB,
            l2_bytes=48 * MIB,
            total_memory=24 * GIB,
        ),
        GpuProfile(
            name="NVIDIA H100 80GB HBM3",
            capability=90,
            multiprocessors=132,
            max_threads_per_multiprocessor=2048,
            max_blocks_per_multiprocessor=32,
            shared_memory_per_multiprocessor=228 * KIB,
            shared_memory_per_block_optin=227 * KIB,
            l2_bytes=50 * MIB,
            total_memory=80 * GIB,
        ),
        GpuProfile(
            name="NVIDIA B200",
            capability=100,
            multiprocessors=148,
            max_threads_per_multiprocessor=2048,
            max_blocks_per_multiprocessor=32,
            shared_memory_per_multiprocessor=228 * KIB,
            shared_memory_per_block_optin=227 * KIB,
            l2_bytes=126 * MIB,
            total_memory=180 * GIB,
        ),
    )
}


def intersect_limits(profiles: Sequence[GpuProfile]) -> GpuProfile:
    """Return the first profile, held to what one block may use on each of `profiles`."""

    def least(limit: str) -> int:
        return min(int(getattr(profile, limit)) for profile in profiles)

    return replace(
        profiles[0],
        max_threads_per_block=least("max_threads_per_block"),
        shared_memory_per_block=least("shared_memory_per_block"),
        shared_memory_per_block_optin=least("shared_memory_per_block_optin"),
        registers_per_multiprocessor=least("registers_per_multiprocessor"),
    )


# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of the driver's interface.
_MAJOR, _MINOR = 75, 76

# CUDA Toolkit release notes, "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor
# Version Compatibility", the column for Linux: by CUDA's major version. The C++ runner has it, too.
MINIMUM_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580"}


@cache
def host_gpu_capabilities() -> tuple[int, ...]:
    """Return the compute capability of each NVIDIA GPU here, 90 for 9.0; none without a driver."""
    driver = _open_driver()
    count = ctypes.c_int(0)
    if driver is None or driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    capabilities = []
    for device in range(count.value):
        numbers = []
        for attribute in (_MAJOR, _MINOR):
            value = ctypes.c_int(0)
            driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            numbers.append(value.value)
        capabilities.append(numbers[0] * 10 + numbers[1])
    return tuple(capabilities)


@cache
def host_cuda() -> tuple[int, int]:
    """Return the newest CUDA that the driver here is for, (13, 0) for 13.0; (0, 0) for none."""
    driver = _open_driver()
    version = ctypes.c_int(0)
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return 0, 0
    # 1000 for each major version and 10 for each minor one.
    return version.value // 1000, version.value % 1000 // 10


def driver_for(major: int) -> str:
    """Return, in words, which driver a CUDA of this major version needs at least."""
    minimum = MINIMUM_DRIVERS.get(major)
    return (
        f"an NVIDIA driver {minimum} or newer" if minimum else f"an NVIDIA driver for CUDA {major}"
    )


def _open_driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
