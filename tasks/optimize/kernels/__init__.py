"""Operators of our own that graphs are rewritten to.

An operator is registered with `torch.library`. In eager it is plain ATen; compiled for CUDA it is a
Triton kernel, and for the CPU a C++ function that becomes part of the package: what serves the
package needs nothing but libtorch.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.export import ExportedProgram

from handoff.tasks.optimize.kernels import (
    attention,
    attention_pooling,
    channels_last,
    depthwise,
    fake_quantize,  # noqa: F401 - which registers it
    int8,  # noqa: F401 - and this
    pointwise,
    squeeze_excite,
)

# What the functions share stands in each: its own code is all that a package has of it.
_SHARED = Path(__file__).with_name("vectors.h")
_INCLUDE = f'#include "{_SHARED.name}"\n'


def _read_definition(source: Path) -> str:
    text = source.read_text(encoding="utf-8")
    return text.replace(_INCLUDE, _SHARED.read_text(encoding="utf-8"))


# The operators that stand for a C++ function, with the function's definition. AOTInductor writes
# it into the package's code where it takes declarations of functions that it is to call.
_CPU_FUNCTIONS: dict[torch._ops.OpOverload, str] = {
    torch.ops.handoff.attention_cpu.default: _read_definition(attention.SOURCE),
    torch.ops.handoff.attention_pooling_cpu.default: _read_definition(attention_pooling.SOURCE),
    torch.ops.handoff.channels_last_cpu.default: _read_definition(channels_last.SOURCE),
    torch.ops.handoff.depthwise_cpu.default: _read_definition(depthwise.SOURCE),
    torch.ops.handoff.pointwise_cpu.default: _read_definition(pointwise.SOURCE),
    torch.ops.handoff.squeeze_excite_cpu.default: _read_definition(squeeze_excite.SOURCE),
}

# Those that are made of libtorch's own alone.
INT8_LAYERS = (
    torch.ops.handoff.int8_convolution.default, torch.ops.handoff.int8_linear.default,
    torch.ops.handoff.int8_linear_measured.default,
    torch.ops.handoff.int8_convolution_added.default,
)  # fmt: skip


def add_cpu_function(operator: torch._ops.OpOverload, definition: str) -> None:
    """Let packages for the CPU call the C++ function `definition` for `operator`.

    It is named `aoti_torch_cpu_NAME`, returns an `AOTITorchError`, takes tensors as
    `AtenTensorHandle` and results as `AtenTensorHandle*`, and stands inside `extern "C"`: one
    definition, without includes. An extension calls this for operators of its own.
    """
    _CPU_FUNCTIONS[operator] = definition


def own_definitions() -> tuple[str, ...]:
    """Return the C++ functions that packages for the CPU may hold: ours, and extensions'."""
    return tuple(_CPU_FUNCTIONS.values())


def compiler_options(program: ExportedProgram) -> dict[str, object]:
    """Return the options that AOTInductor needs for operators in `program` that aren't torch's."""
    namespaces = {
        target.namespace for node in program.graph.nodes
        if isinstance(target := node.target, torch._ops.OpOverload) and target not in INT8_LAYERS
    }  # fmt: skip
    # By namespace: an operator in the graph may be made of others, which have the function.
    functions = {
        operator: [definition] for operator, definition in _CPU_FUNCTIONS.items()
        if operator.namespace in namespaces
    }  # fmt: skip
    return {"aot_inductor.custom_ops_to_c_shims": functions} if functions else {}
