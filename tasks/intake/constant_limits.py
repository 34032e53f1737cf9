"""How much a graph's own numbers, texts and sequences take: estimated before they are computed.

`math.factorial(20000000)` in a forward is one line, and keeps a processor busy for minutes; so do
`7 ** 400000000`, `1 << 10**9`, the elements of a range of 1e12, a tuple that doubles itself sixty
times, `torch.ones(10**12)`. What depends on constants alone is followed here, statement by
statement: from the operands first how large a result would be, and only then the result. What
depends on an input's size or value isn't known here; the step's own budget bounds that.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from handoff.tasks.intake.errors import refuse
from handoff.tasks.intake.module_source import ModuleSource, Ref, StepSource
from handoff.tasks.intake.values import MODULE

MAX_ELEMENTS = 1 << 20
# Of a size, which is known only when the graph runs.
_BITS_OF_A_SIZE = 63
Estimate = Callable[..., tuple[int, str]]


class Unknown:
    """A value that depends on an input."""


class Shape(Unknown):
    """The sizes of a tensor that depends on an input."""


@dataclass(frozen=True)
class Size(Unknown):
    """An integer that depends on an input, of at most so many bits."""

    bits: int = _BITS_OF_A_SIZE


def estimate(
    function: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[int, str] | None:
    """Return how large the result is, and of what; None for operands of which nothing is said."""
    estimator = _ESTIMATES.get(function)
    try:
        return None if estimator is None else estimator(*args, **kwargs)
    except TypeError:  # a float, a tensor, an argument too many
        return None


def _bits(value: object) -> int:
    if isinstance(value, Size):
        return value.bits
    if isinstance(value, int):
        return max(value.bit_length(), 1)
    raise TypeError


def count(value: object) -> int:
    """Return how many elements a sequence has; raise `TypeError` for anything else."""
    if isinstance(value, range):
        # len() fails beyond 63 bits.
        return max(0, -((value.start - value.stop) // value.step))
    if isinstance(value, (tuple, list, str)):
        return len(value)
    raise TypeError


def _product(left: object, right: object) -> tuple[int, str]:
    for sequence, factor in ((left, right), (right, left)):
        if isinstance(sequence, (tuple, list, str, range)) and isinstance(factor, int):
            return count(sequence) * max(factor, 0), "elements"
    return _bits(left) + _bits(right), "bits"


def _sum(left: object, right: object) -> tuple[int, str]:
    if isinstance(left, (tuple, list, str)):
        return count(left) + count(right), "elements"
    return max(_bits(left), _bits(right)) + 1, "bits"


def _power(base: object, exponent: object, modulus: object = None, **_: object) -> tuple[int, str]:
    if not isinstance(exponent, int):
        raise TypeError
    if modulus is not None:
        return max(map(_bits, (base, exponent, modulus))), "bits"
    if isinstance(base, int) and abs(base) <= 1:
        return 1, "bits"
    return _bits(base) * max(exponent, 1), "bits"


def _quotient(left: object, right: object) -> tuple[int, str]:
    return max(_bits(left), _bits(right)), "bits"


def _remainder(left: object, right: object) -> tuple[int, str]:
    if isinstance(left, str):
        # A format's width is in the text: nobody knows what it makes.
        return MAX_ELEMENTS + 1, "elements"
    return _quotient(left, right)


def _shift(left: object, right: object) -> tuple[int, str]:
    if not isinstance(right, int):
        raise TypeError
    return _bits(left) + max(right, 0), "bits"


def _factorial(number: object) -> tuple[int, str]:
    return _permutations(number, number)


def _permutations(number: object, chosen: object = None) -> tuple[int, str]:
    if not isinstance(number, int) or not isinstance(chosen, int | None):
        raise TypeError
    return _bits(number) * (number if chosen is None else min(chosen, number)), "bits"


def _combinations(number: object, chosen: object) -> tuple[int, str]:
    if not isinstance(number, int) or not isinstance(chosen, int):
        raise TypeError
    return _bits(number) * max(min(chosen, number - chosen), 0), "bits"


def _rounding(number: object, digits: object = None) -> tuple[int, str]:
    # 10 ** -digits is computed on the way.
    is_integer = isinstance(number, (int, Size)) and isinstance(digits, int)
    return (max(-4 * int(digits), 0) if is_integer else 0), "bits"  # type: ignore[call-overload]


def _product_of_all(values: object, start: object = 1, **_: object) -> tuple[int, str]:
    if isinstance(values, range):
        return count(values), "elements"
    if isinstance(values, (tuple, list)):
        return sum(_bits(value) for value in values) + _bits(start), "bits"
    raise TypeError


def _common_multiple(*values: object) -> tuple[int, str]:
    return sum(map(_bits, values)), "bits"


def _element_count(*values: object, **_: object) -> tuple[int, str]:
    return sum(count(value) for value in values if isinstance(value, (tuple, list, str, range))), \
        "elements"  # fmt: skip


_ESTIMATES: dict[object, Estimate] = {
    operator.mul: _product, operator.imul: _product,
    operator.add: _sum, operator.iadd: _sum, operator.sub: _sum, operator.isub: _sum,
    operator.concat: _sum, operator.floordiv: _quotient, operator.ifloordiv: _quotient,
    operator.mod: _remainder, operator.imod: _remainder,
    operator.pow: _power, operator.ipow: _power, builtins.pow: _power,
    operator.lshift: _shift, operator.ilshift: _shift,
    math.factorial: _factorial, math.perm: _permutations, math.comb: _combinations,
    math.prod: _product_of_all, math.lcm: _common_multiple, builtins.round: _rounding,
    **dict.fromkeys(
        (
            builtins.tuple, builtins.list, builtins.sum, builtins.max, builtins.min, builtins.all,
            builtins.any, math.fsum, math.dist, operator.contains, operator.countOf,
            operator.indexOf,
        ),
        _element_count,
    ),
}  # fmt: skip


# torch takes no integer of more than 64 bits; what is between two of them may be longer.
MAX_BITS = 1 << 14
MAX_DEPTH = 40
MAX_BYTES = 1 << 32
# Elements that all steps together may pass on: each passes on what it was given.
MAX_WORK = 1 << 24
_REMEDY = (
    "Compute it before the model is captured, and deliver the result; or deliver a model that "
    "doesn't need it"
)


_PYTHON_MODULES = ("builtins", "math", "_operator", "operator")
# What makes a tensor of constants alone.
_FACTORIES = frozenset(
    [
        "arange",
        "as_tensor",
        "bartlett_window",
        "blackman_window",
        "empty",
        "empty_strided",
        "eye",
        "full",
        "hamming_window",
        "hann_window",
        "kaiser_window",
        "linspace",
        "logspace",
        "normal",
        "ones",
        "rand",
        "randint",
        "randn",
        "randperm",
        "range",
        "scalar_tensor",
        "tensor",
        "tril_indices",
        "triu_indices",
        "zeros",
    ]
)
_NEW_METHODS = frozenset({"new_empty", "new_zeros", "new_ones", "new_full"})


_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_STRUCTURAL = (
    builtins.tuple, builtins.list, operator.add, operator.mul, operator.iadd, operator.imul,
    operator.concat, operator.getitem,
)  # fmt: skip

_PLAIN_TYPES = frozenset({int, float, bool, complex, str, type(None)})
_UNKNOWN, _SHAPE = Unknown(), Shape()


def require_small(source: ModuleSource) -> None:
    """Raise `DeliveryUnreadable`, with the line, where a graph's constants make something large."""
    reader = _StepReader()
    for step in source.steps:
        reader.follow(step)


class _StepReader:
    def __init__(self) -> None:
        self._values: dict[str, object] = {}
        self._measures: dict[str, tuple[int, int]] = {}
        self._work = 0

    def follow(self, step: StepSource) -> None:
        """Follow one step."""
        args = tuple(self._value(arg) for arg in step.args)
        kwargs = {name: self._value(arg) for name, arg in step.kwargs.items()}
        elements, depth = self._measure((*step.args, *step.kwargs.values()))
        self._require(elements <= MAX_ELEMENTS, step, "elements in a value", MAX_ELEMENTS, elements)
        self._require(depth <= MAX_DEPTH, step, "levels in a value", MAX_DEPTH, depth)
        self._work += elements
        self._require(self._work <= MAX_WORK, step, "elements passed on", MAX_WORK, self._work)
        result: object = _UNKNOWN
        if step.op == "call_function" and callable(step.target):
            result = self._call(step, step.target, args, kwargs)
        elif step.op == "call_method":
            result = self._call_method(step, args)
        self._values[step.name] = result
        # What isn't known is one element: a tensor, or what torch makes of several.
        self._measures[step.name] = _measure(result)

    def _call_method(self, step: StepSource, args: tuple[object, ...]) -> object:
        if step.target in _NEW_METHODS:
            is_one_sequence = any(isinstance(arg, (tuple, list)) for arg in args[1:2])
            size = args[1:2] if is_one_sequence else args[1:]
            if not any(map(_is_unknown, size)):
                self._require_room(step, torch.empty, size, {})
        if step.target in ("dim", "numel") or (step.target == "size" and args[1:]):
            return Size()
        return _SHAPE if step.target == "size" else _UNKNOWN

    def _call(
        self, step: StepSource, function: Callable[..., Any], args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:  # fmt: skip
        if function is getattr:
            return {"shape": _SHAPE, "ndim": Size()}.get(str(args[1]), _UNKNOWN)
        if function is operator.getitem and args[0] is _SHAPE:
            return Size() if type(args[1]) is int else _SHAPE
        if getattr(function, "__module__", None) not in _PYTHON_MODULES:
            self._require_room(step, function, args, kwargs)
            return _UNKNOWN
        estimated = estimate(function, args, kwargs)
        if estimated is not None:
            size, unit = estimated
            limit = {"bits": MAX_BITS, "elements": MAX_ELEMENTS}[unit]
            self._require(size <= limit, step, unit, limit, size)
            if unit == "bits" and any(isinstance(arg, Size) for arg in args):
                return Size(max(size, 1))
        is_unknown = any(_is_unknown(arg) for arg in (*args, *kwargs.values()))
        if is_unknown and (function not in _STRUCTURAL or kwargs):
            return _UNKNOWN
        try:
            return function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - it will fail in the same way when the graph runs
            return _UNKNOWN

    def _require_room(
        self, step: StepSource, function: Callable[..., Any], args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:  # fmt: skip
        """Ask torch itself, on its device without memory, how large a tensor would be."""
        name = _torch_name(function)
        if name not in _FACTORIES or any(map(_is_unknown, (*args, *kwargs.values()))):
            return
        options = {key: value for key, value in kwargs.items() if key not in ("pin_memory", "out")}
        try:
            tensor = function(*args, **{**options, "device": "meta"})
            size_bytes = tensor.nbytes if isinstance(tensor, torch.Tensor) else 0
        except Exception:  # noqa: BLE001 - as above; or it takes no device, and makes nothing new
            return
        self._require(size_bytes <= MAX_BYTES, step, "bytes in a tensor of constants", MAX_BYTES,
                      size_bytes)  # fmt: skip

    def _require(self, holds: bool, step: StepSource, unit: str, limit: int, size: int) -> None:
        if not holds:
            shown = str(size) if size < 1 << 60 else f"about 2 to the {size.bit_length()}"
            raise refuse(
                f"{MODULE} computes something too large from constants",
                expected=f"at most {limit} {unit}", got=f"{shown} in {step.name}",
                where=f"{MODULE}:{step.line}", remedy=_REMEDY,
            )  # fmt: skip

    def _value(self, arg: object) -> object:
        if isinstance(arg, Ref):
            return self._values.get(arg.name, _UNKNOWN)
        if type(arg) in (tuple, list):
            return type(arg)(self._value(item) for item in arg)  # type: ignore[call-arg, attr-defined]
        if isinstance(arg, slice):
            return slice(*(self._value(item) for item in (arg.start, arg.stop, arg.step)))
        if isinstance(arg, dict):
            return {key: self._value(item) for key, item in arg.items()}
        return arg

    def _measure(self, args: Iterable[object]) -> tuple[int, int]:
        """Return how many elements these hold together, and how deeply."""
        elements, depth = 0, 0
        for arg in args:
            if isinstance(arg, Ref):
                part = self._measures.get(arg.name, (1, 0))
            elif isinstance(arg, (tuple, list)):
                inner = self._measure(arg)
                part = (inner[0], inner[1] + 1)
            elif isinstance(arg, dict):
                inner = self._measure(arg.values())
                part = (inner[0], inner[1] + 1)
            else:
                part = _measure(arg)
            elements, depth = elements + part[0], max(depth, part[1])
        return elements, depth


def _measure(value: object) -> tuple[int, int]:
    """Return how many elements a value holds, counting what it holds twice twice, and its depth.

    Parts that were measured already are few and small: each step's result is.
    """
    seen: dict[int, tuple[int, int]] = {}

    def measure(part: object) -> tuple[int, int]:
        if isinstance(part, range):
            return count(part), 0
        if not isinstance(part, (tuple, list, dict)):
            return 1, 0
        if id(part) not in seen:
            parts = part.values() if isinstance(part, dict) else part
            inner = [(len(parts), 0)] if _is_plain(parts) else [measure(item) for item in parts]
            seen[id(part)] = (
                sum(w for w, _ in inner), 1 + max((d for _, d in inner), default=0)
            )  # fmt: skip
        return seen[id(part)]

    return measure(value)


def _is_plain(values: Iterable[object]) -> bool:
    """Return whether these are numbers and texts alone: at a glance even for a million."""
    return _PLAIN_TYPES.issuperset(map(type, values))


def _is_unknown(value: object) -> bool:
    """Return whether a value, or a part of it, depends on an input."""
    if isinstance(value, slice):
        return any(map(_is_unknown, (value.start, value.stop, value.step)))
    if isinstance(value, (tuple, list)):
        return not _is_plain(value) and any(map(_is_unknown, value))
    if isinstance(value, dict):
        return any(map(_is_unknown, value.values()))
    return isinstance(value, Unknown)


def _torch_name(function: Callable[..., Any]) -> str:
    """Return the name of a function or an operator of torch's own; '' for any other."""
    if isinstance(function, _OPERATORS):
        namespace, name = str(function).split(".")[:2]
        return name if namespace == "aten" else ""
    name = getattr(function, "__name__", "")
    return name if getattr(torch, name, None) is function else ""
