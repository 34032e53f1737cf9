"""Takes the batches that int8 is to choose its ranges by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from handoff.artifacts.delivery.contract import CALIBRATION_BATCHES, CALIBRATION_BYTES
from handoff.artifacts.errors import UsageProblem
from handoff.tasks.deliver.capture.calls import Call, describe_call

Batch = dict[str, torch.Tensor]


def take_calibration(
    module: nn.Module,
    call: Call,
    calibration: Iterable[Sequence[Any]],
    keywords: Mapping[str, Any],
) -> tuple[Batch, ...]:
    """Return the batches, each once, by the names of the call's tensors.

    Each of `calibration` is what forward is called with, of the example's structure and dtypes;
    its sizes may be any that are declared. Raises `UsageProblem` for one that isn't, and for more
    than a delivery holds.
    """
    taken: dict[bytes, Batch] = {}
    size = 0
    for number, arguments in enumerate(calibration):
        if isinstance(arguments, torch.Tensor):
            raise _refuse(number, "a tuple of forward's arguments", "a tensor")
        own, tensors = describe_call(module, arguments, keywords)
        if own.names != call.names:
            raise _refuse(number, f"the tensors {', '.join(call.names)}", ", ".join(own.names))
        batch = dict(zip(own.names, tensors, strict=True))
        content = _content(batch)
        if content in taken:
            continue
        taken[content] = batch
        size += sum(tensor.nbytes for tensor in tensors)
        if len(taken) > CALIBRATION_BATCHES or size > CALIBRATION_BYTES:
            most = f"{CALIBRATION_BATCHES} batches of {CALIBRATION_BYTES >> 20} MiB together"
            raise _refuse(number, f"at most {most}", f"{len(taken)} of {size >> 20} MiB")
    return tuple(taken.values())


def _content(batch: Batch) -> bytes:
    digest = hashlib.sha256()
    for name, tensor in batch.items():
        plain = tensor.detach().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


def _refuse(number: int, expected: str, got: str) -> UsageProblem:
    return UsageProblem(
        f"batch {number} of the calibration can't be delivered", expected=expected, got=got,
        remedy="Give batches as forward is called with them, as many as show what is served",
    )  # fmt: skip
