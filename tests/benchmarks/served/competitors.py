"""What a team could serve a model with instead: each made as its own documentation shows it.

Every maker takes a module that is called with tensors alone, example inputs and the dynamic axes of
each, and returns a function from inputs to outputs. What can't be made raises whatever its maker
raises: that is a result, too. All keep the dynamic axes, as a released package does, where they
can; TorchScript's trace is of the example's size.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tasks.float64 import flat_tensors

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


def make_eager(module: nn.Module, inputs: Tensors, axes: Axes) -> Call:
    """Return eager, without gradients."""
    del inputs, axes
    return lambda given: module(*given)


def make_compiled(mode: str) -> Callable[[nn.Module, Tensors, Axes], Call]:
    """Return a maker of `torch.compile` in this mode."""

    def make(module: nn.Module, inputs: Tensors, axes: Axes) -> Call:
        del inputs, axes
        # A copy, since what is compiled is kept beside the code that it was made from.
        compiled = torch.compile(copy.deepcopy(module), mode=mode)
        return lambda given: compiled(*given)

    return make


def make_torchscript(module: nn.Module, inputs: Tensors, axes: Axes) -> Call:
    """Return the trace of the module, frozen and optimized for inference."""
    del axes
    traced = torch.jit.trace(module, inputs, check_trace=False, strict=False)
    frozen = torch.jit.optimize_for_inference(torch.jit.freeze(traced.eval()))
    return lambda given: tuple(flat_tensors(frozen(*given)))


def make_plain_aoti(module: nn.Module, inputs: Tensors, axes: Axes) -> Call:
    """Return what AOTInductor makes of the module with its own defaults."""
    program = torch.export.export(module, inputs, dynamic_shapes=(axes,))
    folder = Path(tempfile.mkdtemp())
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=str(folder / "model.pt2")
    )
    loaded = torch._inductor.aoti_load_package(str(package))
    return lambda given: tuple(flat_tensors(loaded(*given)))


def export_onnx(module: nn.Module, inputs: Tensors, axes: Axes, path: Path) -> None:
    """Write the module as ONNX."""
    torch.onnx.export(
        module, inputs, path, dynamo=True, dynamic_shapes=(axes,), verbose=False,
        input_names=_names(inputs),
    )  # fmt: skip


def make_onnxruntime(module: nn.Module, inputs: Tensors, axes: Axes) -> Call:
    """Return an ONNX Runtime session with all of its optimizations."""
    import onnxruntime

    path = Path(tempfile.mkdtemp(), "model.onnx")
    export_onnx(module, inputs, axes, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    wanted = {one.name for one in session.get_inputs()}
    return lambda given: _from_numpy(session.run(None, _named(given, wanted)))


def make_openvino(module: nn.Module, inputs: Tensors, axes: Axes) -> Call:
    """Return OpenVINO's model for latency, in float32."""
    import openvino

    path = Path(tempfile.mkdtemp(), "model.onnx")
    export_onnx(module, inputs, axes, path)
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


MAKERS: dict[str, Callable[[nn.Module, Tensors, Axes], Call]] = {
    "eager": make_eager,
    "torch.compile": make_compiled("default"),
    "torch.compile max-autotune": make_compiled("max-autotune"),
    "TorchScript": make_torchscript,
    "ONNX Runtime": make_onnxruntime,
    "OpenVINO": make_openvino,
    "AOTInductor": make_plain_aoti,
}
