"""The manners of a call: twice, in between others, from several threads, with other layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from handoff.tasks.verify.elements import identical
from handoff.tasks.verify.inputs.special import expanded
from handoff.tasks.verify.loading import Tensors, copies
from handoff.tasks.verify.reference import ReferenceCase

Package = Callable[[Tensors], Tensors]
# A case, and what the package gave for it when it was called alone.
Given = tuple[ReferenceCase, Tensors]
# A case, how it was called, and what the package gave: other bits than when it was called alone.
Differing = tuple[ReferenceCase, str, Tensors]

_THREADS = 4


def repeated_calls(package: Package, given: Sequence[Given]) -> Iterator[Differing]:
    """Give each case whose bits aren't what they were before the others were called.

    Outputs are flattened, of any shapes and dtypes.
    """
    for case, before in given:
        again = package(copies(case.inputs))
        if not identical(again, before):
            yield case, "called again after others", again


def threaded_calls(package: Package, given: Sequence[Given], rounds: int) -> Iterator[Differing]:
    """Give what has other bits when four threads call the package at once, for so many rounds.

    Outputs are flattened, of any shapes and dtypes.
    """
    places = [place for _ in range(_THREADS) for place in range(len(given))]
    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in range(rounds):
            made = threads.map(lambda place: package(copies(given[place][0].inputs)), places)
            for place, outputs in zip(places, list(made), strict=True):
                case, alone = given[place]
                if not identical(outputs, alone):
                    yield case, "called by several threads", outputs


def other_layouts(case: ReferenceCase) -> Iterator[tuple[str, Tensors]]:
    """Give the case's inputs with one of them laid out differently in memory, and a name for it.

    Shapes, dtypes and values stay as they are.
    """
    for place, tensor in enumerate(case.inputs):
        for name, changed in _layouts(tensor):
            if changed.stride() != tensor.stride() or name == "misaligned":
                inputs = (*case.inputs[:place], changed, *case.inputs[place + 1 :])
                yield f"{case.name}, input {place} {name}", inputs


def expanded_inputs(case: ReferenceCase) -> Tensors:
    """Return the inputs of a case of repeated values as views that don't hold them repeatedly.

    Shapes and dtypes stay as they are.
    """
    return tuple(
        expanded(axes, tensor) for axes, tensor in zip(case.axes, case.inputs, strict=True)
    )


def _layouts(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if not tensor.numel():
        return
    flat = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
    yield "misaligned", flat[1:].view(tensor.shape).copy_(tensor)
    if tensor.dim() > 1:
        yield "transposed", tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if tensor.dim():
        wide = tensor.new_zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]))
        yield "sliced", wide[..., ::2].copy_(tensor)
    if tensor.dim() == 4:
        yield "channels-last", tensor.contiguous(memory_format=torch.channels_last)
