"""ONNX Runtime on tensors of torch's, on the CPU or on a GPU, without a copy in or out."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tests.studies.benchmarks.served.competitors import Axes, Call, Tensors, export_onnx

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
# ONNX's numbers of its element types (`TensorProto.DataType`): NumPy has no name for bfloat16.
_ELEMENTS = {
    torch.float32: 1, torch.uint8: 2, torch.int8: 3, torch.int32: 6, torch.int64: 7, torch.bool: 9,
    torch.float16: 10, torch.float64: 11, torch.bfloat16: 16,
}  # fmt: skip


class ProviderMissing(Exception):
    """This ONNX Runtime doesn't run on the device; the message says what it runs on."""


def require_provider(device: str) -> None:
    """Raise `ProviderMissing`, or `ImportError`, unless ONNX Runtime can run on the device."""
    import onnxruntime

    available = onnxruntime.get_available_providers()
    if _PROVIDERS[device] not in available:
        raise ProviderMissing(
            f"onnxruntime {onnxruntime.__version__} has no {_PROVIDERS[device]}, "
            f"but {', '.join(available)}"
        )


def write_model(module: nn.Module, inputs: Tensors, batch: int, path: Path) -> None:
    """Write the module as ONNX, the batch dynamic where there is more than one row."""
    size = torch.export.Dim("batch", min=1, max=1024)
    axes: Axes = tuple({0: size} if _has_rows(one, batch) else {} for one in inputs)
    export_onnx(module, inputs, axes, path)


def _has_rows(tensor: torch.Tensor, batch: int) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] == batch and batch > 1


def open_onnxruntime(path: Path, device: str, want: Tensors, *, tf32: bool) -> Call:
    """Return what calls a session on the device, whose results lie where they lay before.

    `want` are outputs of the same shapes and types. Raises `ProviderMissing` where ONNX Runtime
    falls back to the CPU, which it does with a warning only.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = torch.get_num_threads()
    settings = {"use_tf32": str(int(tf32))} if device == "cuda" else {}
    providers = [(_PROVIDERS[device], settings)]
    session = onnxruntime.InferenceSession(path, options, providers=providers)
    if session.get_providers()[0] != _PROVIDERS[device]:
        raise ProviderMissing(f"the session runs on {', '.join(session.get_providers())}")
    results = tuple(torch.empty_like(one, memory_format=torch.contiguous_format) for one in want)
    binding = session.io_binding()
    for output, tensor in zip(session.get_outputs(), results, strict=True):
        binding.bind_output(output.name, *_place(tensor, device))
    # Exporters drop what the model doesn't look at.
    names = {one.name for one in session.get_inputs()}

    def call(tensors: Tensors) -> Tensors:
        contiguous = [tensor.contiguous() for tensor in tensors]
        for place, tensor in enumerate(contiguous):
            if f"input{place}" in names:
                binding.bind_input(f"input{place}", *_place(tensor, device))
        session.run_with_iobinding(binding)
        return results

    return call


def _place(tensor: torch.Tensor, device: str) -> tuple[str, int, int, tuple[int, ...], int]:
    return device, 0, _ELEMENTS[tensor.dtype], tuple(tensor.shape), tensor.data_ptr()
