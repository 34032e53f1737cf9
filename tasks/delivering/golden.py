"""Golden cases: what the original module makes of the example and of a second size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from artifacts.errors import DeliveryUnsound
from artifacts.signature import Dimension, ModelSignature
from tasks.delivering.arguments import Tensors
from tasks.float64 import flat_tensors
from tasks.plan import CaseSpec, draw_inputs
from tasks.tracer import training_parts_left_out

# How far two captures of the same operators may lie apart, of an output's largest value: they
# differ where torch takes another kernel for the same layer (attention's fast path, for one).
_ALLOWED = {torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
_ALLOWED_FLOAT32 = 1e-5
_SECOND_SIZES = (5, 3, 7, 11, 6, 2, 1)


@dataclass(frozen=True)
class GoldenCase:
    """Inputs, all those of the original's forward, and its outputs, flattened.

    `left_out` counts the modules, by class, that were left out of the computation.
    """

    inputs: Tensors
    outputs: Tensors
    left_out: Mapping[str, int]


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Put `module` into evaluation mode for the body, and leave it as it was.

    Modes, attributes, lists and dictionaries of every submodule, and the values of its buffers are
    put back: a forward may keep its last output, or count its calls.
    """
    parts = [(part, dict(part.__dict__)) for part in module.modules()]
    containers = [
        (value, value.copy())
        for _, attributes in parts
        for value in attributes.values()
        if isinstance(value, (dict, list, set))
    ]
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    module.eval()
    try:
        yield
    finally:
        for part, attributes in parts:
            part.__dict__.clear()
            part.__dict__.update(attributes)
        for container, contents in containers:
            _refill(container, contents)
        for buffer, value in buffers:
            if not torch.equal(buffer, value):
                with torch.no_grad():
                    buffer.copy_(value)


def _refill(container: Any, contents: Any) -> None:  # noqa: ANN401 - a dict, a list or a set
    container.clear()
    if isinstance(container, list):
        container.extend(contents)
    else:
        container.update(contents)


def make_golden_cases(
    module: nn.Module, inputs: Tensors, signature: ModelSignature
) -> tuple[GoldenCase, ...]:
    """Return the example and, with dynamic dimensions, a second size, as `module` computes them.

    Modules that only training needs are left out of the computation, as they are of the delivery.
    Raises `DeliveryUnsound` where the module doesn't run, or not twice alike.
    """
    drawn = [inputs]
    if signature.dimensions:
        taken = signature.measure(
            {spec.name: tuple(t.shape) for spec, t in zip(signature.inputs, inputs, strict=True)}
        )
        sizes = {name: _other_size(d, taken[name]) for name, d in signature.dimensions.items()}
        drawn.append(draw_inputs(signature, CaseSpec("second size", sizes, 0)))
    return tuple(_run_twice(module, given, is_example=given is inputs) for given in drawn)


def _other_size(limits: Dimension, size: int) -> int:
    """Return a size within the limits that is not `size`, where there is one."""
    return next((s for s in (*_SECOND_SIZES, limits.min, limits.max) if s in limits and s != size),
                size)  # fmt: skip


def _run_twice(module: nn.Module, inputs: Tensors, *, is_example: bool) -> GoldenCase:
    left_out: Counter[str] = Counter()
    try:
        with training_parts_left_out(left_out):
            first = flat_tensors(module(*[t.clone() for t in inputs]))
        with training_parts_left_out():
            second = flat_tensors(module(*[t.clone() for t in inputs]))
    except Exception as error:
        raise DeliveryUnsound(
            f"the model doesn't run on {'its example' if is_example else 'random'} inputs of the "
            f"shapes {shapes_of(inputs)}",
            expected="outputs",
            got=one_line(error),
            remedy="Give the inputs that it runs on"
            if is_example
            else "Declare what random inputs may hold (ranges), which axes are dynamic (dynamic), "
            "or that all shapes are fixed (dynamic={})",
        ) from error
    if not first:
        raise DeliveryUnsound(
            "the model gives no tensor", expected="a tensor, or tensors in a tuple, list or dict",
            got="none", remedy="Let forward return what is to be served",
        )  # fmt: skip
    if not agree(second, first):
        raise DeliveryUnsound(
            "the model gives another output when it is run again", expected="the same output",
            got="a different one",
            remedy="Take random operators and state that changes out of the forward",
        )  # fmt: skip
    return GoldenCase(inputs, tuple(t.detach().clone() for t in first), left_out)


def shapes_of(tensors: Tensors) -> str:
    """Return the tensors' shapes for a sentence."""
    return ", ".join(str(list(tensor.shape)) for tensor in tensors)


def one_line(error: BaseException) -> str:
    """Return the error's class and the first line of its message."""
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:200]}" if line else type(error).__name__


def agree(got: Tensors, want: Tensors) -> bool:
    """Tell whether `got` is `want`, but for rounding; NaN and infinity have to be the same."""
    return len(got) == len(want) and all(_same(a, b) for a, b in zip(got, want, strict=True))


def _same(got: torch.Tensor, want: torch.Tensor) -> bool:
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if torch.equal(got, want):
        return True
    if not want.is_floating_point():
        return False
    finite = want.isfinite()
    largest = float(want[finite].abs().max()) if bool(finite.any()) else 0.0
    allowed = _ALLOWED.get(want.dtype, _ALLOWED_FLOAT32) * largest
    return torch.allclose(got, want, rtol=0.0, atol=allowed, equal_nan=True)
