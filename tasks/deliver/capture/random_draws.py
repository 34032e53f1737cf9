"""Notices what draws random numbers, which makes a model give another output each time."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from handoff.artifacts.errors import DeliveryUnsound
from handoff.tasks.deliver.capture.calls import Call, Tensors
from handoff.tasks.deliver.capture.lines import Line, current_user_line, format_line

# Operators that can draw are tagged whether they do or not; these arguments say that they don't.
_PROBABILITIES = ("dropout_p", "dropout", "p")
_SWITCHES = ("train", "training", "is_training")


class RandomDraws(TorchDispatchMode):
    """While it is entered, calls `on_draw` with the name of each operator that draws.

    It sees what reaches the dispatcher below autograd, where a dropout in evaluation mode isn't an
    operator any more, and torch's own tag says what draws.
    """

    def __init__(self, on_draw: Callable[[str], object]) -> None:
        """Take what is to be called."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_draw = on_draw

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own signature
        """Run the operator."""
        if torch.Tag.nondeterministic_seeded in func.tags and _is_active(func, args, kwargs or {}):
            self._on_draw(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _is_active(operator: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> bool:  # noqa: ANN401 - as above
    arguments = {
        argument.name: args[index] if index < len(args) else argument.default_value
        for index, argument in enumerate(operator._schema.arguments)
    }
    arguments.update(kwargs)
    if any(arguments.get(name, True) is False for name in _SWITCHES):
        return False
    return not any(arguments.get(name, 1.0) == 0 for name in _PROBABILITIES)


def _generator_states() -> dict[str, str]:
    """Return the states of the generators that aren't torch's, by how their module is called."""
    states = {"Python's random": repr(random.getstate())}
    if numpy := sys.modules.get("numpy"):
        kind, keys, *rest = numpy.random.get_state()
        states["numpy.random"] = repr((kind, keys.tobytes(), *rest))
    return states


def unrepeatable_error(module: nn.Module, call: Call, inputs: Tensors) -> DeliveryUnsound:
    """Return the refusal of a model that doesn't repeat itself, naming what draws where it does.

    `inputs` are those of the call, of any shapes and dtypes.
    """
    drawn: dict[str, Line | None] = {}
    before = _generator_states()
    with RandomDraws(lambda name: drawn.setdefault(name, current_user_line())):
        call.run(module, inputs)
    drawn |= {
        name: None for name, state in _generator_states().items() if state != before.get(name)
    }
    first_line = next((line for line in drawn.values() if line is not None), None)
    if drawn:
        got = f"a different one: forward draws random numbers ({', '.join(drawn)})"
        remedy = (
            "Take random operators and functional dropout (training=self.training) out of it; "
            "noise that the model needs can be one of its inputs: forward(x, noise)"
        )
    else:
        got = "a different one, though nothing is drawn: it depends on what the last call left"
        remedy = "Take counters, caches, clocks and buffers that change out of the forward"
    return DeliveryUnsound(
        "the model gives another output when it is run again",
        expected="the same output for the same input", got=got, remedy=remedy,
        where="" if first_line is None else format_line(first_line),
    )  # fmt: skip
