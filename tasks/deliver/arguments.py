"""What the training side says of a model's inputs becomes a signature, or a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from handoff.artifacts.delivery.signature import (
    DECLARED,
    FROM_EXAMPLE,
    REAL_INPUTS,
    Dimension,
    ModelSignature,
    TensorSpec,
)
from handoff.artifacts.errors import UsageProblem, parse_message
from handoff.tasks.deliver.capture.calls import Tensors
from handoff.tasks.deliver.options import require_axes, require_limits, require_ranges

Dynamic = Mapping[str, Mapping[int, str]]
Limits = Mapping[str, tuple[int, int] | tuple[int, int, int]]
Ranges = Mapping[str, tuple[float, float]]

DEFAULT_BATCH = Dimension(1, 1024)


def unwrap(module: nn.Module) -> nn.Module:
    """Return the model inside `torch.compile`'s or a data-parallel wrapper.

    Raises `UsageProblem` for what isn't a model in Python any more.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise UsageProblem(
            "the model is TorchScript already", expected="an nn.Module in Python",
            got=type(module).__name__, remedy="Deliver the module that it was scripted from",
        )  # fmt: skip
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrap(module.module)
    # By its name, because the class is Dynamo's, which takes a second to import.
    if type(module).__name__ == "OptimizedModule":
        return unwrap(module.get_submodule("_orig_mod"))
    return module


def require_on_cpu(module: nn.Module, inputs: Tensors) -> None:
    """Raise `UsageProblem` unless the weights and the example inputs lie in the CPU's memory.

    Inputs may be of any shapes and dtypes.
    """
    devices = {t.device.type for t in (*module.parameters(), *module.buffers(), *inputs)}
    if devices - {"cpu"}:
        raise UsageProblem(
            "the model, or an example input, isn't on the CPU", expected="all of them on cpu",
            got=", ".join(sorted(devices)), remedy="Move both: model.cpu() and x.cpu()",
        )  # fmt: skip


def describe_inputs(
    names: Sequence[str],
    inputs: Tensors,
    dynamic: Dynamic | None,
    dimensions: Limits | None,
    ranges: Ranges | None,
) -> ModelSignature:
    """Return the signature of the inputs; `deliver` says what the defaults are.

    They may be of any shapes, and of dtypes of real numbers. Raises `UsageProblem` where what is
    said contradicts itself or the example.
    """
    for name, tensor in zip(names, inputs, strict=True):
        if tensor.is_complex():
            raise UsageProblem(
                f"the input {name} can't be delivered", expected="a dtype of real numbers",
                got=str(tensor.dtype).removeprefix("torch."), remedy=REAL_INPUTS,
            )  # fmt: skip
    dynamic = _default_dynamic(names, inputs) if dynamic is None else dynamic
    dimensions, ranges = dimensions or {}, ranges or {}
    require_axes(names, inputs, dynamic)
    require_ranges(names, inputs, ranges)
    used = list(dict.fromkeys(axis for axes in dynamic.values() for axis in axes.values()))
    require_limits(dimensions, used)
    try:
        specs = tuple(
            _infer_spec(name, tensor, dynamic.get(name, {}), ranges.get(name))
            for name, tensor in zip(names, inputs, strict=True)
        )
        limits = {
            name: _infer_dimension(name, specs, inputs, dimensions.get(name)) for name in used
        }
        signature = ModelSignature(specs, (), limits)
        signature.measure_inputs(inputs)
    except ValueError as error:
        name, expected, got = parse_message(str(error))
        raise UsageProblem(
            f"{name or 'the example'} doesn't fit the sizes and ranges that are declared",
            expected=expected or "what holds for the example",
            got=got,
            remedy="Fix that argument (dynamic={input: {axis: dimension}}, dimensions={dimension: "
            "(min, max)}, ranges={input: (low, high)}), or give another example",
        ) from error
    return signature


def _default_dynamic(names: Sequence[str], inputs: Tensors) -> Dynamic:
    leading = {tensor.shape[0] if tensor.dim() else None for tensor in inputs}
    if len(leading) != 1 or None in leading:
        return {}
    return {name: {0: "batch"} for name in names}


def describe_fixed_sizes(names: Sequence[str], inputs: Tensors) -> tuple[str, ...]:
    """Return a note on inputs without a batch in common, of any shapes and dtypes; else none."""
    if _default_dynamic(names, inputs):
        return ()
    first = [
        f"{name} {tensor.shape[0] if tensor.dim() else 'a scalar'}"
        for name, tensor in zip(names, inputs, strict=True)
    ]
    return (
        f"all sizes are fixed to the example's, because the inputs' first axes differ "
        f"({', '.join(first)}): dynamic={{INPUT: {{AXIS: NAME}}}} says which of them vary",
    )


def _infer_spec(
    name: str,
    tensor: torch.Tensor,
    axes: Mapping[int, str],
    limits: tuple[float, float] | None,
) -> TensorSpec:
    shape = tuple(axes.get(axis, size) for axis, size in enumerate(tensor.shape))
    integer = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
    low = high = None
    origin = ""
    if integer and tensor.numel():
        low, high, origin = float(tensor.min()), float(tensor.max()), FROM_EXAMPLE
    if limits is not None:
        low, high = (float(limit) for limit in limits)
        origin = DECLARED
    return TensorSpec(name, str(tensor.dtype).removeprefix("torch."), shape, low, high, origin)


def _infer_dimension(
    dimension: str,
    specs: Sequence[TensorSpec],
    inputs: Tensors,
    declared: tuple[int, ...] | None,
) -> Dimension:
    """Return the dimension's range: the one given, or 1 to 1024, and to the example's own size."""
    if declared is not None:
        low, high, *step = map(int, declared)
        return Dimension(low, high, DECLARED, *step)
    sizes = [
        size for spec, tensor in zip(specs, inputs, strict=True)
        for axis, size in zip(spec.shape, tensor.shape, strict=True) if axis == dimension
    ]  # fmt: skip
    return Dimension(DEFAULT_BATCH.min, max(DEFAULT_BATCH.max, *sizes), "by default")
