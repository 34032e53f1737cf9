"""Open a compiled package in this process; only a step process may, since it can crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from tasks.float64 import flat_tensors

Tensors = tuple[torch.Tensor, ...]

SHARED_LIBRARY = "model.so"
PACKAGE = "model.pt2"


def open_shared_library(path: Path) -> Callable[[Tensors], Tensors]:
    """Return a function that runs the bare `.so`, with the runner that C++ programs use."""
    # An absolute path, because dlopen searches its own list for a name without a slash.
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path.absolute()), 1)
    return lambda inputs: tuple(runner.run(list(inputs)))


def open_package(path: Path) -> Callable[[Tensors], Tensors]:
    """Return a function that runs the `.pt2` package."""
    loaded = torch._inductor.aoti_load_package(str(path.absolute()))
    return lambda inputs: flat_tensors(loaded(*inputs))
