"""Notices the operators that draw random numbers while something runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Operators that can draw are tagged whether they do or not; these arguments say that they don't.
_PROBABILITIES = ("dropout_p", "dropout", "p")
_SWITCHES = ("train", "training", "is_training")


class RandomDraws(TorchDispatchMode):
    """While it is entered, calls `notice` with the name of each operator that draws.

    It sees what reaches the dispatcher below autograd, where a dropout in evaluation mode isn't an
    operator any more, and torch's own tag says what draws.
    """

    def __init__(self, notice: Callable[[str], object]) -> None:
        """Take what is to be called."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._notice = notice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own signature
        """Run the operator."""
        if torch.Tag.nondeterministic_seeded in func.tags and _is_active(func, args, kwargs or {}):
            self._notice(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _is_active(operator: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> bool:  # noqa: ANN401 - as above
    named = {
        argument.name: args[place] if place < len(args) else argument.default_value
        for place, argument in enumerate(operator._schema.arguments)
    }
    named.update(kwargs)
    if any(named.get(name, True) is False for name in _SWITCHES):
        return False
    return not any(named.get(name, 1.0) == 0 for name in _PROBABILITIES)
