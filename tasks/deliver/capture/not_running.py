"""What a model that fails on inputs is refused with: its line, its inputs, and what helps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from handoff.artifacts.errors import DeliveryUnsound
from handoff.tasks.deliver.capture.calls import Call, Tensors, described
from handoff.tasks.deliver.capture.lines import Line, text_of, written_line

# What torch says of the mistakes that are made most, and what helps.
_ORDINARY = (
    (r"scalar types: Long, Int;", "Ids are whole numbers: make them by torch.randint, or .long()"),
    (
        r"NVIDIA driver|not compiled with CUDA|on the same device",
        "A delivery is made on the CPU: take .cuda() and device= out of forward; x.device and "
        "register_buffer keep everything where the inputs are",
    ),
)


@dataclass(frozen=True)
class Given:
    """What a model is run on: its example, or inputs that were drawn, of any shapes and dtypes.

    `sizes` are those of the dynamic dimensions, where they aren't the example's.
    """

    tensors: Tensors
    drawn: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)


# What to do about an EmbeddingBag whose caller says where its bags begin.
BAGS = (
    "Take the ids as [batch, longest], padded: nn.EmbeddingBag(..., padding_idx=0) of them leaves "
    "the padding out, and needs no offsets"
)


class DoesNotRun(DeliveryUnsound):
    """The model fails on inputs; it may run on others. `why` is what it raised or gave."""

    why: str = ""


def does_not_run(call: Call, given: Given, why: str, line: Line | None = None) -> DoesNotRun:
    """Return the refusal of a model that fails on `given`, at `line` where that is known.

    It names the finding that the delivered graph would have.
    """
    what, code, remedy = _which(call, given, why)
    refusal = DoesNotRun(
        f"the model fails on {what}",
        expected=f"forward to run on {_described(call, given.tensors)}",
        got=f"{text_of(line)}{why.removesuffix('.')} [{code}]",
        remedy=remedy,
        where="" if line is None else written_line(line),
    )
    refusal.why = why
    return refusal


def _which(call: Call, given: Given, why: str) -> tuple[str, str, str]:
    """Return what the model fails on, the finding for it, and what to do about it."""
    if "offsets[0] has to be 0" in why:
        return "offsets of its bags that aren't its example's", "bag-offsets", BAGS
    if given.sizes:
        sizes = ", ".join(f"{name} = {size}" for name, size in given.sizes.items())
        return (
            f"another size than its example's, {sizes}",
            "size-baked-in",
            "Take sizes from x.shape in forward, in place of numbers; or declare which sizes of "
            f"{' or '.join(given.sizes)} there are (dimensions={{NAME: (LOW, HIGH)}}: a minimum, "
            f"for one), or that all are fixed (dynamic={{}}){_lacks_batch(call, given)}"
            f"{_counts(call, given)}",
        )
    if given.drawn:
        return (
            "other values than its example's",
            "example-fails",
            "Declare what the inputs may hold: ranges={INPUT: (LOW, HIGH)}",
        )
    known = next((told for pattern, told in _ORDINARY if re.search(pattern, why)), "")
    return (
        "its example inputs",
        "example-fails",
        known or "Give inputs of the shapes and dtypes that forward takes, or fix forward",
    )


def _lacks_batch(call: Call, given: Given) -> str:
    """Return what helps where an example seems to be a single one, without the batch's axis."""
    rows = [
        name for name, tensor in zip(call.names, given.tensors, strict=True)
        if tensor.dim() == 1 and tensor.is_floating_point()
    ]  # fmt: skip
    return f". If {rows[0]} lacks the axis of the batch, give {rows[0]}[None]" if rows else ""


def _counts(call: Call, given: Given) -> str:
    """Return what helps where whole numbers, such as lengths, are too large for the sizes."""
    whole = [
        name for name, tensor in zip(call.names, given.tensors, strict=True)
        if not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
    ]  # fmt: skip
    if not whole:
        return ""
    return (
        f". If {' or '.join(whole)} holds counts that are too large for these sizes, clamp it in "
        "forward: one range is declared for all sizes"
    )


def _described(call: Call, tensors: Tensors) -> str:
    """Return the inputs with dtype and shape: `ids int64 [4, 16], mask bool [4, 16]`."""
    return ", ".join(
        f"{name} {described(tensor)}" for name, tensor in zip(call.names, tensors, strict=True)
    )
