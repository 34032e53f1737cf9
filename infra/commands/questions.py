"""What `handoff init` asks on a terminal, with what was inferred as the answer to take by Enter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from handoff.artifacts.delivery.contract import require_model_name
from handoff.artifacts.delivery.signature import Dimension, TensorSpec
from handoff.infra.commands.input_flags import format_spec, parse_limits, parse_spec, parse_values
from handoff.infra.terminal.echoing import ask, echo
from handoff.tasks.propose.messages import InputProposal

_T = TypeVar("_T")


def ask_name(default: str) -> str:
    """Return the model's name in the registry."""

    def check(text: str) -> str:
        require_model_name(text)
        return text

    return _ask("Name in the registry", default, check)


def ask_input(found: InputProposal) -> TensorSpec:
    """Return the dtype and shape of an input; ids keep the values that were inferred."""
    echo(f"{found.name}: {found.why}", err=True)
    known = found.spec
    default = format_spec(known) if known else None
    spec = _ask(f"  {found.name} as DTYPE:AXES", default, lambda text: parse_spec(found.name, text))
    if known is not None and "int" in spec.dtype:
        return replace(spec, low=known.low, high=known.high)
    return spec


def ask_values(spec: TensorSpec) -> TensorSpec:
    """Return the spec with the values that the input may hold."""
    default = "0:1" if spec.low is None else f"{spec.low:.0f}:{spec.high:.0f}"
    low, high = _ask(f"  values of {spec.name} as LOW:HIGH", default, parse_values)
    return replace(spec, low=low, high=high)


def ask_dimension(name: str, known: Dimension) -> Dimension:
    """Return the sizes that a dynamic dimension may have."""
    return _ask(f"  sizes of {name} as MIN:MAX", f"{known.min}:{known.max}", parse_limits)


def _ask(question: str, default: str | None, parse: Callable[[str], _T]) -> _T:
    """Ask until the answer can be read."""
    while True:
        answer = ask(question, default)
        try:
            return parse(answer)
        except ValueError as error:
            echo(f"  {error}", err=True)
