"""Why a model gives another output when it is run again: what draws, and where."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from artifacts.errors import DeliveryUnsound
from tasks.delivering.calls import Call, Tensors
from tasks.lines import Line, line_outside, written_line


class _DrawWatch(TorchDispatchMode):
    """Notes each operator that draws random numbers, and the line that called it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn: dict[str, Line | None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own signature
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.drawn.setdefault(func.overloadpacket.__name__, line_outside())
        return func(*args, **(kwargs or {}))


def not_repeatable(module: nn.Module, call: Call, inputs: Tensors) -> DeliveryUnsound:
    """Return the refusal of a model that doesn't repeat itself, naming what draws where it does."""
    with _DrawWatch() as watch:
        call.run(module, inputs)
    place = next((line for line in watch.drawn.values() if line is not None), None)
    if watch.drawn:
        got = f"a different one: forward draws random numbers ({', '.join(watch.drawn)})"
        remedy = "Take random operators and functional dropout (training=self.training) out of it"
    else:
        got = "a different one, though nothing is drawn: it depends on what the last call left"
        remedy = "Take counters, caches and buffers that change out of the forward"
    return DeliveryUnsound(
        "the model gives another output when it is run again",
        expected="the same output for the same input", got=got, remedy=remedy,
        where="" if place is None else written_line(place),
    )  # fmt: skip
