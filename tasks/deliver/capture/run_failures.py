"""What a model that fails on inputs is refused with: its line, its inputs, and what helps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from handoff.artifacts.errors import DeliveryUnsound
from handoff.tasks.deliver.capture.calls import Call, Tensors, format_tensor
from handoff.tasks.deliver.capture.lines import Line, format_line, quote_line

# What torch says of the mistakes that are made most, and what helps.
_COMMON_ERRORS = (
    (r"scalar types: Long, Int;", "Ids are whole numbers: make them by torch.randint, or .long()"),
    (
        r"NVIDIA driver|not compiled with CUDA|on the same device",
        "A delivery is made on the CPU: take .cuda() and device= out of forward; x.device and "
        "register_buffer keep everything where the inputs are",
    ),
)


@dataclass(frozen=True)
class SampleInputs:
    """What a model is run on: its example, or inputs that were drawn, of any shapes and dtypes.

    `sizes` are those of the dynamic dimensions, where they aren't the example's.
    """

    tensors: Tensors
    drawn: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)


# What to do about an EmbeddingBag whose caller says where its bags begin.
BAGS_REMEDY = (
    "Take the ids as [batch, longest], padded: nn.EmbeddingBag(..., padding_idx=0) of them leaves "
    "the padding out, and needs no offsets"
)


class ModelRunFailed(DeliveryUnsound):
    """The model fails on inputs; it may run on others. `why` is what it raised or gave."""

    why: str = ""


def run_failure(
    call: Call, sample: SampleInputs, why: str, line: Line | None = None
) -> ModelRunFailed:
    """Return the refusal of a model that fails on `sample`, at `line` where that is known.

    It names the finding that the delivered graph would have.
    """
    what, code, remedy = _diagnose(call, sample, why)
    refusal = ModelRunFailed(
        f"the model fails on {what}",
        expected=f"forward to run on {_format_inputs(call, sample.tensors)}",
        got=f"{quote_line(line)}{why.removesuffix('.')} [{code}]",
        remedy=remedy,
        where="" if line is None else format_line(line),
    )
    refusal.why = why
    return refusal


def _diagnose(call: Call, sample: SampleInputs, why: str) -> tuple[str, str, str]:
    """Return what the model fails on, the finding for it, and what to do about it."""
    if "offsets[0] has to be 0" in why:
        return "offsets of its bags that aren't its example's", "bag-offsets", BAGS_REMEDY
    if sample.sizes:
        sizes = ", ".join(f"{name} = {size}" for name, size in sample.sizes.items())
        return (
            f"another size than its example's, {sizes}",
            "size-baked-in",
            "Take sizes from x.shape in forward, in place of numbers; or declare which sizes of "
            f"{' or '.join(sample.sizes)} there are (dimensions={{NAME: (LOW, HIGH)}}: a minimum, "
            f"for one), or that all are fixed (dynamic={{}}){_advise_batch_axis(call, sample)}"
            f"{_advise_clamping(call, sample)}",
        )
    if sample.drawn:
        return (
            "other values than its example's",
            "example-fails",
            "Declare what the inputs may hold: ranges={INPUT: (LOW, HIGH)}",
        )
    remedies = [remedy for pattern, remedy in _COMMON_ERRORS if re.search(pattern, why)]
    remedies.append("Give inputs of the shapes and dtypes that forward takes, or fix forward")
    return "its example inputs", "example-fails", remedies[0]


def _advise_batch_axis(call: Call, sample: SampleInputs) -> str:
    """Return what helps where an example seems to be a single one, without the batch's axis."""
    rows = [
        name for name, tensor in zip(call.names, sample.tensors, strict=True)
        if tensor.dim() == 1 and tensor.is_floating_point()
    ]  # fmt: skip
    return f". If {rows[0]} lacks the axis of the batch, give {rows[0]}[None]" if rows else ""


def _advise_clamping(call: Call, sample: SampleInputs) -> str:
    """Return what helps where whole numbers, such as lengths, are too large for the sizes."""
    integers = [
        name for name, tensor in zip(call.names, sample.tensors, strict=True)
        if not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
    ]  # fmt: skip
    if not integers:
        return ""
    return (
        f". If {' or '.join(integers)} holds counts that are too large for these sizes, clamp it "
        "in forward: one range is declared for all sizes"
    )


def _format_inputs(call: Call, tensors: Tensors) -> str:
    """Return the inputs with dtype and shape: `ids int64 [4, 16], mask bool [4, 16]`."""
    return ", ".join(
        f"{name} {format_tensor(tensor)}" for name, tensor in zip(call.names, tensors, strict=True)
    )
