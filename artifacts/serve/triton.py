"""A release as Triton Inference Server's pytorch backend takes it: its model configuration.

The names are those of `model_config.proto` in triton-inference-server/common (commit 83adf7c) and
of the README of triton-inference-server/pytorch_backend (commit 266fd38): platform `torch_aoti`
since Triton 26.03, inputs and outputs by their place since 26.05. That backend joins no requests of
such a model, and takes no bfloat16 and no scalar, as its source says (`src/libtorch_utils.cc`,
`src/pt2/model_instance_state.cc`).
"""

from __future__ import annotations

from collections.abc import Iterator

from handoff.artifacts.delivery.signature import ModelSignature, TensorSpec
from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.release.manifest import Manifest, TargetRecord

CONFIG_FILE = "config.pbtxt"
PACKAGE_FILE = "model.pt2"
_TYPES = {
    "float64": "TYPE_FP64", "float32": "TYPE_FP32", "float16": "TYPE_FP16", "int64": "TYPE_INT64",
    "int32": "TYPE_INT32", "int16": "TYPE_INT16", "int8": "TYPE_INT8", "uint8": "TYPE_UINT8",
    "bool": "TYPE_BOOL",
}  # fmt: skip


def model_config(manifest: Manifest, target: TargetRecord, version: int) -> str:
    """Return the `config.pbtxt` by which a server serves `version`, and that one alone.

    Raises `UsageProblem` for a model whose inputs or outputs the backend doesn't take.
    """
    signature = manifest.signature
    _require_supported(manifest.model, signature)
    device = "KIND_GPU" if target.slug.startswith("cuda") else "KIND_CPU"
    torch = target.fit.torch if target.fit else ""
    lines = [
        f"# {manifest.model} version {version} for {target.slug}, written by handoff pull.",
        f"# It was built with torch {torch}: a server with another one can't open it.",
        f'name: "{manifest.model}"',
        'backend: "pytorch"',
        'platform: "torch_aoti"',
        f'default_model_filename: "{PACKAGE_FILE}"',
        "# The contract's sizes, rows with them: this backend joins no requests.",
        "max_batch_size: 0",
        f"version_policy {{ specific {{ versions: [ {version} ] }} }}",
        f"instance_group [ {{ count: 1 kind: {device} }} ]",
        *_format_tensors("input", signature.inputs, signature),
        *_format_tensors("output", signature.outputs, signature),
    ]
    return "\n".join(lines) + "\n"


def _require_supported(model: str, signature: ModelSignature) -> None:
    for spec in (*signature.inputs, *signature.outputs):
        if spec.dtype in _TYPES and spec.shape and 0 not in spec.shape:
            continue
        raise UsageProblem(
            f"{model} can't be served by Triton's pytorch backend",
            expected=f"tensors of one axis or more, none of size 0, of {', '.join(_TYPES)}",
            got=str(spec), remedy="Deliver a model that takes and gives those, or serve it with "
            "handoff.follow or in C++",
        )  # fmt: skip


def _format_tensors(
    kind: str, specs: tuple[TensorSpec, ...], signature: ModelSignature
) -> Iterator[str]:
    for place, spec in enumerate(specs):
        notes = [f"{spec.name}"]
        notes += [
            f"{axis} {signature.dimensions[axis]}"
            for axis in dict.fromkeys(spec.shape) if isinstance(axis, str)
        ]  # fmt: skip
        notes += [f"values {spec.values}"] if spec.values else []
        dims = ", ".join(str(-1 if isinstance(axis, str) else axis) for axis in spec.shape)
        yield f"# {'; '.join(notes)}"
        yield f"{kind} [ {{"
        yield f'  name: "{kind.upper()}__{place}"'
        yield f"  data_type: {_TYPES[spec.dtype]}"
        yield f"  dims: [ {dims} ]"
        yield "} ]"
