"""What a team could serve a model with instead: each made as its own documentation shows it.

What serves from a file is written in one process and opened in another, as it would be: a process
that has exported and compiled has a large heap, in which calls meet no page faults. The module that
files are made of is called with tensors alone; eager and `torch.compile` have the model itself and
its own arguments. So nobody's call has work in it that a user's has not. What can't be made raises
whatever its maker raises: that is a result, too.

ONNX Runtime, OpenVINO and AOTInductor keep the dynamic axes, as a released package does.
`torch.compile` is given none and meets one size, so that its code is for that alone, as
TorchScript's trace is of the example's size: an advantage to both.

What Handoff registers is opened by the loader that a serving team uses, from a release's folder:
its checks of each call's inputs are in its time, as torch's own Python wrapper is in AOTInductor's.

In bfloat16 there are autocast's rounding, eagerly and compiled, and OpenVINO's. ONNX Runtime has no
products of bfloat16 matrices on x86-64, and so is not in that table; nor are TorchScript and plain
AOTInductor, whose documentation shows no way to it but a model that was cast by hand. What Handoff
registers in float32 takes part there, too.

In int8 there are the two runtimes that have a documented way for x86-64: ONNX Runtime's own
`quantize_static` and `quantize_dynamic`, and OpenVINO with NNCF. All choose their ranges by the
same batches, which Handoff's delivery brings, too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor.cpu_vec_isa import VecISA

from handoff.artifacts.release.manifest import MANIFEST_FILE
from handoff.artifacts.serve.loader import load_unreleased
from handoff.tasks.compile.patching import patch_attribute
from handoff.tasks.verify.float64 import flatten_tensors

# In a folder of its own, beside its weights.
OPENVINO_FILE = "model.xml"
Tensors = tuple[Tensor, ...]
Call = Callable[[Tensors], object]
Axes = tuple[dict[int, Any], ...]


class FlatModule(nn.Module):
    """A module that takes tensors one by one, wherever they belong in the model's own call."""

    def __init__(self, module: nn.Module, call: Any) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *tensors: Tensor) -> Tensors:
        args, kwargs = self.call.bind(tensors)
        return flatten_tensors(self.module(*args, **kwargs))


class InBfloat16(nn.Module):
    """A module whose matrix products and convolutions autocast rounds to bfloat16."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.module(*args, **kwargs)


@dataclass(frozen=True)
class ExportSource:
    """What files are made of: a module, its example inputs, their dynamic axes, other batches.

    The batches are made when they are asked for: only int8 does.
    """

    module: FlatModule
    inputs: Tensors
    axes: Axes
    batches: Callable[[], Sequence[Tensors]]


@dataclass(frozen=True)
class InProcessCompetitor:
    """What serves the model itself: `open` returns what is called as the model is."""

    open: Callable[[nn.Module], Callable[..., object]]


@dataclass(frozen=True)
class FileCompetitor:
    """What serves from `file`, a name that two of them may share.

    `write` makes it of what is given, or else somebody has, and `open` returns a function from
    inputs to outputs of it.
    """

    file: str
    open: Callable[[Path], Call]
    write: Callable[[ExportSource, Path], object] | None = None


def compile_as(mode: str) -> Callable[[nn.Module], Callable[..., object]]:
    """Return what opens `torch.compile` in this mode."""
    return lambda module: torch.compile(module, mode=mode)


def trace(module: nn.Module, inputs: Tensors) -> Any:
    """Return the frozen trace of the module."""
    for part in module.modules():
        # What Lightning's own `to_torchscript` does: tracing reads all of a module's properties,
        # and its `trainer` raises where there is none.
        if hasattr(part, "_jit_is_scripting"):
            part._jit_is_scripting = True  # type: ignore[assignment]
    traced = torch.jit.trace(module, inputs, check_trace=False, strict=False)
    return torch.jit.freeze(traced.eval())


def write_torchscript(source: ExportSource, path: Path) -> None:
    """Write the frozen trace."""
    trace(source.module, source.inputs).save(str(path))


def open_torchscript(path: Path) -> Call:
    """Return the frozen trace, optimized for inference, which can't be written."""
    optimized = torch.jit.optimize_for_inference(torch.jit.load(str(path)))
    return lambda inputs: optimized(*inputs)


def write_plain_aoti(source: ExportSource, path: Path) -> None:
    """Write what AOTInductor makes of the module with its own defaults."""
    program = torch.export.export(source.module, source.inputs, dynamic_shapes=(source.axes,))
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def open_aoti(path: Path) -> Call:
    """Return the package as torch's own loader gives it."""
    # Torch compiles test programs for this machine's vector instructions, whose name it then only
    # compares for a warning: seconds.
    with patch_attribute(VecISA, "check_build", lambda *_: True):
        loaded = torch._inductor.aoti_load_package(str(path.absolute()))
    return lambda inputs: loaded(*inputs)


def export_onnx(
    module: nn.Module, inputs: Tensors, axes: Axes, path: Path, *, external_data: bool = True
) -> None:
    """Write a module as ONNX, with its weights beside the file or in it."""
    torch.onnx.export(
        module, inputs, path, dynamo=True, dynamic_shapes=(axes,), verbose=False,
        input_names=_names(inputs), external_data=external_data,
    )  # fmt: skip


def write_onnx(source: ExportSource, path: Path) -> None:
    """Write the module as ONNX."""
    export_onnx(source.module, source.inputs, source.axes, path)


def write_onnx_static_int8(source: ExportSource, path: Path) -> None:
    """Write what ONNX Runtime makes of the module: QDQ, weights by channel, ranges by batches."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Batches(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, names: Container[str]) -> None:
            self._left = iter([_to_numpy(batch, names) for batch in source.batches()])

        def get_next(self) -> dict[str, Any] | None:
            return next(self._left, None)

    with _prepared_onnx(source) as prepared:
        reader = Batches(_onnx_inputs(prepared))
        quantize_static(prepared, path, reader, per_channel=True)


def write_onnx_dynamic_int8(source: ExportSource, path: Path) -> None:
    """Write what ONNX Runtime makes of the module where ranges are found at each call."""
    from onnxruntime.quantization import quantize_dynamic

    with _prepared_onnx(source) as prepared:
        quantize_dynamic(prepared, path, per_channel=True)


def write_openvino_int8(source: ExportSource, folder: Path) -> None:
    """Write what NNCF makes of OpenVINO's model; Transformers are said to be ones, as it asks."""
    import nncf
    import openvino

    with _exported_onnx(source) as exported:
        model = openvino.Core().read_model(exported)
        names = {one.any_name for one in model.inputs}
        batches = [_to_numpy(batch, names) for batch in source.batches()]
        attends = any(one.get_type_name() == "Softmax" for one in model.get_ops())
        kind = nncf.ModelType.TRANSFORMER if attends else None
        quantized = nncf.quantize(
            model, nncf.Dataset(batches), model_type=kind, subset_size=len(batches)
        )
    folder.mkdir()
    openvino.save_model(quantized, folder / OPENVINO_FILE, compress_to_fp16=False)


@contextmanager
def _exported_onnx(source: ExportSource) -> Iterator[Path]:
    """Have the module as ONNX in a folder that goes afterwards."""
    with tempfile.TemporaryDirectory(prefix="handoff-onnx-") as scratch:
        exported = Path(scratch, "exported.onnx")
        # ONNX Runtime's preparation moves the file, and not what lies beside it.
        export_onnx(source.module, source.inputs, source.axes, exported, external_data=False)
        yield exported


@contextmanager
def _prepared_onnx(source: ExportSource) -> Iterator[Path]:
    """Have the same as ONNX Runtime prepares it for its quantization.

    Symbolic shapes are left out of that, as it advises for Transformers; what the exporter has
    written holds them.
    """
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with _exported_onnx(source) as exported:
        prepared = exported.with_name("prepared.onnx")
        quant_pre_process(exported, prepared, skip_symbolic_shape=True)
        yield prepared


def _onnx_inputs(path: Path) -> set[str]:
    import onnx

    return {one.name for one in onnx.load(path, load_external_data=False).graph.input}


def open_onnxruntime(path: Path) -> Call:
    """Return an ONNX Runtime session with all of its optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = {one.name for one in session.get_inputs()}
    return lambda inputs: _from_numpy(session.run(None, _to_numpy(inputs, names)))


def open_openvino(precision: str) -> Callable[[Path], Call]:
    """Return what opens OpenVINO's model for latency, in `f32` or `bf16`."""

    def open_model(path: Path) -> Call:
        import openvino

        compiled = openvino.Core().compile_model(
            path / OPENVINO_FILE if path.is_dir() else path, "CPU",
            {
                "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": precision,
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            },
        )  # fmt: skip
        request = compiled.create_infer_request()
        names = {one.any_name for one in compiled.inputs}

        def call(inputs: Tensors) -> Tensors:
            found = request.infer(_to_numpy(inputs, names), share_inputs=True, share_outputs=True)
            return _from_numpy(list(found.values()))

        return call

    return open_model


def open_release(manifest: Path) -> Call:
    """Return a release's package as a serving process opens it, but for the signature."""
    model = load_unreleased(manifest.parent, "auto")
    return lambda inputs: model(*inputs)


def _names(inputs: Tensors) -> list[str]:
    return [f"input{place}" for place in range(len(inputs))]


def _to_numpy(inputs: Tensors, names: Container[str]) -> dict[str, Any]:
    # Exporters drop what the model doesn't look at.
    pairs = zip(_names(inputs), inputs, strict=True)
    return {name: tensor.numpy() for name, tensor in pairs if name in names}


def _from_numpy(arrays: Sequence[Any]) -> Tensors:
    return tuple(map(torch.from_numpy, arrays))


COMPETITORS: dict[str, InProcessCompetitor | FileCompetitor] = {
    "eager": InProcessCompetitor(lambda module: module),
    "torch.compile": InProcessCompetitor(compile_as("default")),
    "torch.compile max-autotune": InProcessCompetitor(compile_as("max-autotune")),
    "TorchScript": FileCompetitor("model.ts", open_torchscript, write_torchscript),
    "ONNX Runtime": FileCompetitor("model.onnx", open_onnxruntime, write_onnx),
    "OpenVINO": FileCompetitor("model.onnx", open_openvino("f32"), write_onnx),
    "AOTInductor": FileCompetitor("plain.pt2", open_aoti, write_plain_aoti),
    "eager bfloat16": InProcessCompetitor(InBfloat16),
    "torch.compile bfloat16": InProcessCompetitor(
        lambda module: compile_as("default")(InBfloat16(module))
    ),
    "OpenVINO bfloat16": FileCompetitor("model.onnx", open_openvino("bf16"), write_onnx),
    "ONNX Runtime int8": FileCompetitor("static.onnx", open_onnxruntime, write_onnx_static_int8),
    "ONNX Runtime int8 dynamic": FileCompetitor(
        "dynamic.onnx", open_onnxruntime, write_onnx_dynamic_int8
    ),
    "OpenVINO int8": FileCompetitor("openvino-int8", open_openvino("f32"), write_openvino_int8),
}
_BFLOAT16 = ("eager bfloat16", "torch.compile bfloat16", "OpenVINO bfloat16")
_INT8 = ("ONNX Runtime int8", "ONNX Runtime int8 dynamic", "OpenVINO int8")
# By the precision that recipes allow. All speeds are multiples of eager's in float32.
RIVALS = {
    "float32": tuple(name for name in COMPETITORS if name not in (*_BFLOAT16, *_INT8)),
    "bfloat16": ("eager", *_BFLOAT16),
    "int8": ("eager", *_INT8),
}
# What Handoff registers, by whatever name a release is raced.
RELEASED = FileCompetitor(MANIFEST_FILE, open_release)
