"""What a contract needs to know, read from `handoff init`'s flags or asked on a terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from handoff.artifacts.delivery.contract import require_model_name
from handoff.artifacts.delivery.signature import DTYPES, Dimension, TensorSpec
from handoff.artifacts.errors import UsageProblem
from handoff.infra.terminal.output import ask, echo
from handoff.tasks.propose.messages import InputProposal

_T = TypeVar("_T")
_SIZE = re.compile(r"[0-9]{1,12}")


def parse_input(text: str) -> TensorSpec:
    """Return the input that `NAME:DTYPE:AXES` means, such as `x:float32:batch,3,224,224`.

    An axis is a size or a dimension's name; a scalar has none. Raises `UsageProblem`.
    """
    name, _, rest = text.partition(":")
    return _parse_flag("--input", text, "NAME:DTYPE:AXES, such as x:float32:batch,3,224,224",
                    lambda: parse_spec(name, rest))  # fmt: skip


def parse_spec(name: str, text: str) -> TensorSpec:
    """Return the spec of the input `name` that `DTYPE:AXES` means; raise `ValueError`."""
    dtype, separator, axes = (part.strip() for part in text.partition(":"))
    if not separator:
        raise ValueError(f"expected DTYPE:AXES, with a dtype among {', '.join(DTYPES)}")
    shape = tuple(_parse_axis(axis.strip()) for axis in axes.split(",")) if axes else ()
    return TensorSpec(name.strip(), dtype, shape)


def format_spec(spec: TensorSpec) -> str:
    """Return a spec as `parse_spec` reads it."""
    return f"{spec.dtype}:{','.join(map(str, spec.shape))}"


def _parse_axis(text: str) -> int | str:
    return int(text) if _SIZE.fullmatch(text) else text


def parse_dimension(text: str) -> tuple[str, Dimension]:
    """Return what `NAME=MIN:MAX` means, such as `batch=1:1024`, or `NAME=MIN:MAX:MULTIPLE`.

    Raises `UsageProblem`.
    """
    name, _, limits = text.partition("=")
    dimension = _parse_flag("--dimension", text, "NAME=MIN:MAX, such as batch=1:1024, or with "
                     "the number that divides each size, height=16:512:16",
                     lambda: parse_limits(limits))  # fmt: skip
    return name.strip(), dimension


def parse_limits(text: str) -> Dimension:
    """Return the sizes that `MIN:MAX` or `MIN:MAX:MULTIPLE` means; raise `ValueError`."""
    numbers = [part.strip() for part in text.split(":")]
    if len(numbers) not in (2, 3) or not all(map(_SIZE.fullmatch, numbers)):
        raise ValueError("expected MIN:MAX, two sizes, or MIN:MAX:MULTIPLE")
    low, high, *step = map(int, numbers)
    return Dimension(low, high, multiple_of=step[0] if step else 1)


def format_limits(limits: Dimension) -> str:
    """Return a range as `parse_limits` reads it."""
    step = f":{limits.multiple_of}" if limits.multiple_of > 1 else ""
    return f"{limits.min}:{limits.max}{step}"


def parse_range(text: str) -> tuple[str, tuple[float, float]]:
    """Return what `NAME=LOW:HIGH` means, such as `ids=0:1999`. Raises `UsageProblem`."""
    name, _, limits = text.partition("=")
    values = _parse_flag("--range", text, "NAME=LOW:HIGH, such as ids=0:1999",
                     lambda: parse_values(limits))  # fmt: skip
    return name.strip(), values


def parse_values(text: str) -> tuple[float, float]:
    """Return the value range that `LOW:HIGH` means, both ends included; raise `ValueError`."""
    low, separator, high = text.partition(":")
    if not separator:
        raise ValueError("expected LOW:HIGH, two numbers")
    values = float(low), float(high)
    if not (math.isfinite(values[0]) and math.isfinite(values[1]) and values[0] <= values[1]):
        raise ValueError("expected finite numbers, the lower one first")
    return values


def _parse_flag(flag: str, text: str, expected: str, parse: Callable[[], _T]) -> _T:
    try:
        return parse()
    except ValueError as error:
        raise UsageProblem(
            f"the option {flag} can't be read",
            expected=expected,
            got=f"{text[:80]!r} ({error})",
            remedy="Write it like the example",
        ) from error


def ask_name(default: str) -> str:
    """Return the model's name in the registry."""

    def check(text: str) -> str:
        require_model_name(text)
        return text

    return _ask("Name in the registry", default, check)


def ask_input(proposal: InputProposal) -> TensorSpec:
    """Return the dtype and shape of an input; ids keep the values that were inferred."""
    echo(f"{proposal.name}: {proposal.why}", err=True)
    inferred = proposal.spec
    default = format_spec(inferred) if inferred else None
    spec = _ask(
        f"  {proposal.name} as DTYPE:AXES", default, lambda text: parse_spec(proposal.name, text)
    )
    if inferred is not None and "int" in spec.dtype:
        return replace(spec, low=inferred.low, high=inferred.high)
    return spec


def ask_values(spec: TensorSpec) -> TensorSpec:
    """Return the spec with the values that the input may hold."""
    default = "0:1" if spec.low is None else f"{spec.low:.0f}:{spec.high:.0f}"
    low, high = _ask(f"  values of {spec.name} as LOW:HIGH", default, parse_values)
    return replace(spec, low=low, high=high)


def ask_dimension(name: str, inferred: Dimension) -> Dimension:
    """Return the sizes that a dynamic dimension may have."""
    return _ask(f"  sizes of {name} as MIN:MAX", format_limits(inferred), parse_limits)


def _ask(question: str, default: str | None, parse: Callable[[str], _T]) -> _T:
    """Ask until the answer can be read."""
    while True:
        answer = ask(question, default)
        try:
            return parse(answer)
        except ValueError as error:
            echo(f"  {error}", err=True)
