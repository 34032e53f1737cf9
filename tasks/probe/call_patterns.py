"""Ways of calling a package: twice, in between others, from several threads, with other layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from handoff.tasks.verify.elements import are_identical
from handoff.tasks.verify.inputs.special import expand_axes
from handoff.tasks.verify.loading import Tensors, clone_inputs
from handoff.tasks.verify.reference import ReferenceCase

Package = Callable[[Tensors], Tensors]
# A case, and what the package gave for it when it was called alone.
Baseline = tuple[ReferenceCase, Tensors]
# A case, how it was called, and what the package gave: other bits than when it was called alone.
Difference = tuple[ReferenceCase, str, Tensors]

_THREADS = 4


def repeated_calls(package: Package, baselines: Sequence[Baseline]) -> Iterator[Difference]:
    """Give each case whose bits aren't what they were before the others were called.

    Outputs are flattened, of any shapes and dtypes.
    """
    for case, expected in baselines:
        outputs = package(clone_inputs(case.inputs))
        if not are_identical(outputs, expected):
            yield case, "called again after others", outputs


def threaded_calls(
    package: Package, baselines: Sequence[Baseline], rounds: int
) -> Iterator[Difference]:
    """Give what has other bits when four threads call the package at once, for so many rounds.

    Outputs are flattened, of any shapes and dtypes.
    """
    indices = [index for _ in range(_THREADS) for index in range(len(baselines))]
    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in range(rounds):
            results = threads.map(
                lambda index: package(clone_inputs(baselines[index][0].inputs)), indices
            )
            for index, outputs in zip(indices, list(results), strict=True):
                case, expected = baselines[index]
                if not are_identical(outputs, expected):
                    yield case, "called by several threads", outputs


def other_layouts(case: ReferenceCase) -> Iterator[tuple[str, Tensors]]:
    """Give the case's inputs with one of them laid out differently in memory, and a name for it.

    Shapes, dtypes and values stay as they are.
    """
    for index, tensor in enumerate(case.inputs):
        for name, changed in _layouts(tensor):
            if changed.stride() != tensor.stride() or name == "misaligned":
                inputs = (*case.inputs[:index], changed, *case.inputs[index + 1 :])
                yield f"{case.name}, input {index} {name}", inputs


def expanded_inputs(case: ReferenceCase) -> Tensors:
    """Return the inputs of a case of repeated values as views that don't hold them repeatedly.

    Shapes and dtypes stay as they are.
    """
    return tuple(
        expand_axes(axes, tensor) for axes, tensor in zip(case.axes, case.inputs, strict=True)
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
