"""What a team could serve a model with instead: each made as its own documentation shows it.

What serves from a file is written in one process and opened in another, as it would be: a process
that has exported and compiled has a large heap, in which calls meet no page faults. The module that
all are made of is called with tensors alone. What can't be made raises whatever its maker raises:
that is a result, too. All keep the dynamic axes, as a released package does, where they can;
TorchScript's trace is of the example's size.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tasks.float64 import flat_tensors
from tasks.loading import SHARED_LIBRARY, open_package, open_shared_library

Tensors = tuple[Tensor, ...]
Call = Callable[[Tensors], Tensors]
Axes = tuple[dict[int, Any], ...]


class Flat(nn.Module):
    """A module that takes tensors one by one, wherever they belong in the model's own call."""

    def __init__(self, module: nn.Module, call: Any) -> None:
        super().__init__()
        self.module, self._call = module, call

    def forward(self, *tensors: Tensor) -> Tensors:
        args, kwargs = self._call.bind(tensors)
        return tuple(flat_tensors(self.module(*args, **kwargs)))


@dataclass(frozen=True)
class InProcess:
    """What serves the module itself: `open` returns a function from inputs to outputs."""

    open: Callable[[nn.Module], Call]


@dataclass(frozen=True)
class FromFile:
    """What serves from `file`, a name that two of them may share.

    `write` makes it of the module, or else somebody has, and `open` returns a function from inputs
    to outputs of it.
    """

    file: str
    open: Callable[[Path], Call]
    write: Callable[[nn.Module, Tensors, Axes, Path], object] | None = None


def open_eager(module: nn.Module) -> Call:
    """Return eager, without gradients."""
    return lambda given: module(*given)


def open_compiled(mode: str) -> Callable[[nn.Module], Call]:
    """Return what opens `torch.compile` in this mode."""

    def opened(module: nn.Module) -> Call:
        compiled = torch.compile(module, mode=mode)
        return lambda given: compiled(*given)

    return opened


def trace(module: nn.Module, inputs: Tensors) -> Any:
    """Return the frozen trace of the module."""
    traced = torch.jit.trace(module, inputs, check_trace=False, strict=False)
    return torch.jit.freeze(traced.eval())


def write_torchscript(module: nn.Module, inputs: Tensors, axes: Axes, path: Path) -> None:
    """Write the frozen trace."""
    del axes
    trace(module, inputs).save(str(path))


def open_torchscript(path: Path) -> Call:
    """Return the frozen trace, optimized for inference, which can't be written."""
    return run_torchscript(torch.jit.load(str(path)))


def run_torchscript(frozen: Any) -> Call:
    """Optimize a frozen trace for inference; return what calls it."""
    optimized = torch.jit.optimize_for_inference(frozen)
    return lambda given: tuple(flat_tensors(optimized(*given)))


def write_plain_aoti(module: nn.Module, inputs: Tensors, axes: Axes, path: Path) -> None:
    """Write what AOTInductor makes of the module with its own defaults."""
    program = torch.export.export(module, inputs, dynamic_shapes=(axes,))
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def write_onnx(module: nn.Module, inputs: Tensors, axes: Axes, path: Path) -> None:
    """Write the module as ONNX."""
    torch.onnx.export(
        module, inputs, path, dynamo=True, dynamic_shapes=(axes,), verbose=False,
        input_names=_names(inputs),
    )  # fmt: skip


def open_onnxruntime(path: Path) -> Call:
    """Return an ONNX Runtime session with all of its optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    wanted = {one.name for one in session.get_inputs()}
    return lambda given: _from_numpy(session.run(None, _named(given, wanted)))


def open_openvino(path: Path) -> Call:
    """Return OpenVINO's model for latency, in float32."""
    import openvino

    compiled = openvino.Core().compile_model(
        path, "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        },
    )  # fmt: skip
    request = compiled.create_infer_request()
    wanted = {one.any_name for one in compiled.inputs}

    def call(given: Tensors) -> Tensors:
        found = request.infer(_named(given, wanted), share_inputs=True, share_outputs=True)
        return _from_numpy(list(found.values()))

    return call


def _names(inputs: Tensors) -> list[str]:
    return [f"input{place}" for place in range(len(inputs))]


def _named(given: Tensors, wanted: Container[str]) -> dict[str, Any]:
    # Exporters drop what the model doesn't look at.
    named = zip(_names(given), given, strict=True)
    return {name: tensor.numpy() for name, tensor in named if name in wanted}


def _from_numpy(arrays: Sequence[Any]) -> Tensors:
    return tuple(map(torch.from_numpy, arrays))


COMPETITORS: dict[str, InProcess | FromFile] = {
    "eager": InProcess(open_eager),
    "torch.compile": InProcess(open_compiled("default")),
    "torch.compile max-autotune": InProcess(open_compiled("max-autotune")),
    "TorchScript": FromFile("model.ts", open_torchscript, write_torchscript),
    "ONNX Runtime": FromFile("model.onnx", open_onnxruntime, write_onnx),
    "OpenVINO": FromFile("model.onnx", open_openvino, write_onnx),
    "AOTInductor": FromFile("plain.pt2", open_package, write_plain_aoti),
}
# What Handoff registers, by whatever name a package is raced.
RELEASED = FromFile(SHARED_LIBRARY, open_shared_library)
