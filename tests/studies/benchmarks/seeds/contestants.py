"""Who takes part: what each is made of, and how it is opened in the process that times it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from handoff.artifacts.recipe.search import Search, Variation
from handoff.tasks.verify.loading import open_shared_library
from tests.studies.benchmarks.seeds.asked import PlayJob
from tests.studies.benchmarks.seeds.onnx_runtime import open_onnxruntime
from tests.studies.benchmarks.served.competitors import Call, FlatModule, Tensors, trace

EAGER, ONNX = "eager", "ONNX Runtime"
HANDOFF = "Handoff, "
NATIVE = f"{HANDOFF}plain"
# The same program for the same GPU, by a process that sees none, here or on another machine.
CROSS = f"{HANDOFF}cross-compiled"
ELSEWHERE = f"{CROSS} elsewhere"

# What a search would try. Freezing is for CPUs: a package compiled without a GPU can't have it.
_VARIANTS = {
    "cpu": ("plain", "freezing", "channels-last+freezing", "cpu-attention+freezing",
            "pool-with-attention"),
    "cuda": ("plain", "max-autotune", "channels-last", "channels-last+max-autotune",
             "pool-with-attention"),
}  # fmt: skip


def from_files(device: str) -> tuple[str, ...]:
    """Return the contestants that serve from a file that is made here."""
    variants = tuple(f"{HANDOFF}{variant}" for variant in _VARIANTS[device])
    return (ONNX, *variants, *((CROSS,) if device == "cuda" else ()))


def variation_of(contestant: str) -> Variation:
    """Return the options and passes of one of Handoff's variants beside the plain one's."""
    if contestant in (NATIVE, CROSS):
        return Variation()
    return Search.variation(contestant.removeprefix(HANDOFF))


def open_eager(model: FlatModule, inputs: Tensors) -> Call:
    """Return what calls the model itself, whose arguments are put together once."""
    return _bind_call(model.module, model, inputs)


def makers(
    job: PlayJob, model: FlatModule, inputs: Tensors, want: Tensors
) -> dict[str, Callable[[], Call]]:
    """Return what opens each contestant but eager; `want` are eager's outputs."""

    def library(name: str) -> Callable[[], Call]:
        return lambda: open_shared_library(job.files[name], job.device)

    found: dict[str, Callable[[], Call]] = {
        "torch.compile max-autotune": lambda: _open_compiled(model, inputs),
        "TorchScript": lambda: _open_torchscript(model, inputs),
    }
    if ONNX in job.files:
        tf32 = job.precision == "tf32"
        found[ONNX] = lambda: open_onnxruntime(job.files[ONNX], job.device, want, tf32=tf32)
    found |= {name: library(name) for name in job.files if name.startswith(HANDOFF)}
    return {name: make for name, make in found.items() if name not in job.without}


def _open_compiled(model: FlatModule, inputs: Tensors) -> Call:
    # Of a copy, since what is compiled is kept beside the code that it was made from.
    compiled = torch.compile(copy.deepcopy(model.module), mode="max-autotune")
    return _bind_call(compiled, model, inputs)


def _open_torchscript(model: FlatModule, inputs: Tensors) -> Call:
    optimized = torch.jit.optimize_for_inference(trace(model, inputs))
    return lambda tensors: optimized(*tensors)


def _bind_call(module: Callable[..., Any], model: FlatModule, inputs: Tensors) -> Call:
    args, kwargs = model.call.bind(inputs)
    return lambda _: module(*args, **kwargs)
