"""Why a model gives another output when it is run again: what draws, and where."""

from __future__ import annotations

from torch import nn

from handoff.artifacts.errors import DeliveryUnsound
from handoff.tasks.deliver.capture.calls import Call, Tensors
from handoff.tasks.deliver.capture.lines import Line, line_outside, written_line
from handoff.tasks.deliver.capture.random_draws import RandomDraws


def not_repeatable(module: nn.Module, call: Call, inputs: Tensors) -> DeliveryUnsound:
    """Return the refusal of a model that doesn't repeat itself, naming what draws where it does.

    `inputs` are those of the call, of any shapes and dtypes.
    """
    drawn: dict[str, Line | None] = {}
    with RandomDraws(lambda name: drawn.setdefault(name, line_outside())):
        call.run(module, inputs)
    place = next((line for line in drawn.values() if line is not None), None)
    if drawn:
        got = f"a different one: forward draws random numbers ({', '.join(drawn)})"
        remedy = "Take random operators and functional dropout (training=self.training) out of it"
    else:
        got = "a different one, though nothing is drawn: it depends on what the last call left"
        remedy = "Take counters, caches and buffers that change out of the forward"
    return DeliveryUnsound(
        "the model gives another output when it is run again",
        expected="the same output for the same input", got=got, remedy=remedy,
        where="" if place is None else written_line(place),
    )  # fmt: skip
