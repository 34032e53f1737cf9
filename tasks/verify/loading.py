"""Open a compiled package in this process; only a step process may, since it can crash."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch._inductor.cpu_vec_isa import VecISA

from handoff.artifacts.serve.archive import (
    EXTERN_KERNELS_FILE,
    linked_library,
    read_descriptor,
    require_known_operators,
)
from handoff.artifacts.serve.loader import ask_for_tiles, keep_freed_memory
from handoff.tasks.compile.patching import patch_attribute
from handoff.tasks.verify.float64 import flatten_tensors

Tensors = tuple[torch.Tensor, ...]

SHARED_LIBRARY = "model.so"
PACKAGE = "model.pt2"


def clone_inputs(inputs: Tensors) -> Tensors:
    """Return copies for a call, because a model may change its inputs in place.

    They may be of any shapes and dtypes.
    """
    return tuple(tensor.clone() for tensor in inputs)


def device_of(target: str) -> str:
    """Return the device that a target's packages run on, by the target's slug."""
    return "cuda" if target.startswith("cuda") else "cpu"


def open_shared_library(path: Path, device: str = "cpu") -> Callable[[Tensors], Tensors]:
    """Return a function that runs the bare `.so`, with the runner that C++ programs use.

    It takes and gives tensors on `device`, flattened, of the package's shapes and dtypes. Operators
    that are called by name are those in the JSON beside it, if there is one. Freed memory is kept
    between calls, and AMX's tiles may be used, as where a release is served.
    """
    keep_freed_memory()
    ask_for_tiles()
    # By a name that no other file has had in this process: dlopen takes a library that it has
    # loaded from the same path, and hardly ever unloads, for the one that lies there now. The
    # descriptor stays open, so that its number is not used again.
    library = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernels = os.open(path.with_name(EXTERN_KERNELS_FILE), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return _runner(f"/proc/self/fd/{library}", device)
    try:
        require_known_operators(read_descriptor(kernels, EXTERN_KERNELS_FILE), EXTERN_KERNELS_FILE)
        with linked_library(library, kernels) as linked:
            return _runner(linked, device)
    finally:
        os.close(kernels)


def _runner(library: str, device: str) -> Callable[[Tensors], Tensors]:
    runner = (
        torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1)
        if device == "cpu"
        else torch._C._aoti.AOTIModelContainerRunnerCuda(library, 1, device, "")
    )
    return lambda inputs: tuple(runner.run(list(inputs)))


def open_package(path: Path, device: str = "cpu") -> Callable[[Tensors], Tensors]:
    """Return a function that runs the `.pt2` package, on tensors on `device`.

    It takes and gives them flattened, of the package's shapes and dtypes.
    """
    index = -1 if device == "cpu" else 0
    ask_for_tiles()
    # Torch compiles test programs for this machine's vector instructions, whose name it then only
    # compares for a warning: seconds.
    with patch_attribute(VecISA, "check_build", lambda *_: True):
        loaded = torch._inductor.aoti_load_package(str(path.absolute()), device_index=index)
    return lambda inputs: flatten_tensors(loaded(*inputs))


def call_from_host(
    package: Callable[[Tensors], Tensors], device: str
) -> Callable[[Tensors], Tensors]:
    """Return a function that takes and gives tensors on the CPU, and runs the package on `device`.

    Shapes and dtypes may be any; strides stay as they are.
    """
    if device == "cpu":
        return package

    def run(inputs: Tensors) -> Tensors:
        on_device = tuple(tensor.to(device) for tensor in inputs)
        return tuple(tensor.cpu() for tensor in package(on_device))

    return run
