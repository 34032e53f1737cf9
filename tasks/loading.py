"""Open a compiled package in this process; only a step process may, since it can crash."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from tasks.float64 import flat_tensors

Tensors = tuple[torch.Tensor, ...]

SHARED_LIBRARY = "model.so"
PACKAGE = "model.pt2"


def open_shared_library(path: Path) -> Callable[[Tensors], Tensors]:
    """Return a function that runs the bare `.so`, with the runner that C++ programs use."""
    # By a name that no other file has had in this process: dlopen takes a library that it has
    # loaded from the same path, and hardly ever unloads, for the one that lies there now. The
    # descriptor stays open, so that its number is not used again.
    library = f"/proc/self/fd/{os.open(path, os.O_RDONLY | os.O_CLOEXEC)}"
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1)
    return lambda inputs: tuple(runner.run(list(inputs)))


def open_package(path: Path) -> Callable[[Tensors], Tensors]:
    """Return a function that runs the `.pt2` package."""
    loaded = torch._inductor.aoti_load_package(str(path.absolute()))
    return lambda inputs: flat_tensors(loaded(*inputs))
