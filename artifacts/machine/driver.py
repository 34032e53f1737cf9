"""The NVIDIA driver of this machine: which GPUs it has, and which CUDA it is for."""

from __future__ import annotations

import ctypes
from functools import cache

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
    found = []
    for device in range(count.value):
        numbers = []
        for attribute in (_MAJOR, _MINOR):
            value = ctypes.c_int(0)
            driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            numbers.append(value.value)
        found.append(numbers[0] * 10 + numbers[1])
    return tuple(found)


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
    known = MINIMUM_DRIVERS.get(major)
    return f"an NVIDIA driver {known} or newer" if known else f"an NVIDIA driver for CUDA {major}"


def _open_driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
