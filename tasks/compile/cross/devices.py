"""What is replaced for a while, and making torch forget what it was told about devices."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

import torch

from handoff.tasks.compile.patching import moved

# The functions that remember an answer about a device (`functools.cache`), beside those that
# Inductor's own `clear_caches` makes forget. Not all that remember: some are how torch sees to it
# that a table of patterns is filled only once.
_REMEMBERING: dict[str, tuple[str, ...]] = {
    "torch._inductor.codecache": ("CacheBase.get_system",),
    "torch._inductor.runtime.hints": ("DeviceProperties.create",),
    "torch._inductor.utils": (
        "get_gpu_type",
        "is_big_gpu",
        "get_max_num_sms",
        "using_b200",
        "get_backend_num_stages",
        "_get_device_tflops",
        "_get_device_dram_gbps",
        "get_gpu_dram_gbps",
        "_triton_supported_fp8_dtypes",
    ),
    "torch._subclasses.fake_tensor": ("init_gpu_context",),
    "torch.utils._triton": (
        "_device_supports_tensor_descriptor",
        "has_triton_experimental_host_tma",
        "has_triton_tensor_descriptor_host_tma",
        "has_triton_tma",
        "has_triton_tma_device",
        "has_triton_cuda_tma_device",
        "has_datacenter_blackwell_tma_device",
        "has_triton_stable_tma_api",
        "has_triton",
        "triton_backend",
        "triton_hash_with_backend",
    ),
    "triton.compiler.compiler": ("max_shared_mem",),
}

# Those of them that torch 2.11 doesn't have yet.
_NOT_IN_2_11 = frozenset({
    "_get_device_tflops", "_get_device_dram_gbps", "_triton_supported_fp8_dtypes",
    "_device_supports_tensor_descriptor", "has_triton_cuda_tma_device",
})  # fmt: skip


@dataclass(frozen=True)
class Patch:
    """A name of `owner` (a module, a class or an object), and what it stands for meanwhile."""

    owner: Any
    name: str
    value: object


def forget_devices() -> None:
    """Clear what torch and Triton remember, since an answer about a device is good for that one.

    Raises `EnvironmentLacking` where one of the functions isn't there: torch has moved it.
    """
    import_module("torch._inductor.utils").clear_caches()
    absent = _NOT_IN_2_11 if torch.__version__.startswith("2.11.") else frozenset()
    for module, names in _REMEMBERING.items():
        for name in names:
            if name in absent:
                continue
            try:
                function = attrgetter(name)(import_module(module))
                function.cache_clear()
            except AttributeError as error:
                raise moved(f"{module}.{name}, which remembers") from error
