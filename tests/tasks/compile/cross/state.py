"""What torch and the process are like, to compare before and after."""

from __future__ import annotations

import copy
import os
from importlib import import_module
from typing import Any

import torch

# Everything that is patched belongs to one of these, and some that isn't.
OWNERS = (
    "torch.cuda",
    "torch._dynamo.device_interface",
    "torch._dynamo.device_interface.CudaInterface",
    "torch._dynamo.device_interface.CudaInterface.Worker",
    "torch._subclasses.fake_tensor",
    "torch._subclasses.fake_tensor.FakeTensorMode",
    "torch._inductor.graph",
    "torch._inductor.graph.GraphLowering",
    "torch._inductor.codecache",
    "torch._inductor.codegen.wrapper.PythonWrapperCodegen",
    "torch._inductor.fx_passes.joint_graph.UniformValueConstantFolder",
    "torch._inductor.runtime.benchmarking.Benchmarker",
    "torch._inductor.runtime.triton_helpers",
    "torch._inductor.runtime.triton_heuristics.CachingAutotuner",
    "torch.utils.cpp_extension",
    "triton.runtime.driver.driver",
)


def find(name: str) -> Any:
    """Return the module, class or object of this name."""
    try:
        return import_module(name)
    except ImportError:
        owner, _, last = name.rpartition(".")
        return getattr(find(owner), last)


def state() -> dict[str, object]:
    """Return what every owner holds, by identity, and torch's and the process's settings."""
    things = ((f"{owner}.{n}", v) for owner in OWNERS for n, v in vars(find(owner)).items())
    # Counters count on, which is no patch.
    held = {name: id(value) for name, value in things if not isinstance(value, int)}
    settings = copy.deepcopy(torch._inductor.config.get_config_copy())
    return {**held, **dict(os.environ), **settings, "gradients": torch.is_grad_enabled()}
