"""How large what Python computes would be, by the operands: an estimate for each function."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MOST_ELEMENTS = 1 << 20
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
    found = _ESTIMATES.get(function)
    try:
        return None if found is None else found(*args, **kwargs)
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
    for one, other in ((left, right), (right, left)):
        if isinstance(one, (tuple, list, str, range)) and isinstance(other, int):
            return count(one) * max(other, 0), "elements"
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
        return MOST_ELEMENTS + 1, "elements"
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
    is_whole = isinstance(number, (int, Size)) and isinstance(digits, int)
    return (max(-4 * int(digits), 0) if is_whole else 0), "bits"  # type: ignore[call-overload]


def _together(values: object, start: object = 1, **_: object) -> tuple[int, str]:
    if isinstance(values, range):
        return count(values), "elements"
    if isinstance(values, (tuple, list)):
        return sum(_bits(value) for value in values) + _bits(start), "bits"
    raise TypeError


def _multiples(*values: object) -> tuple[int, str]:
    return sum(map(_bits, values)), "bits"


def _elements(*values: object, **_: object) -> tuple[int, str]:
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
    math.prod: _together, math.lcm: _multiples, builtins.round: _rounding,
    **dict.fromkeys(
        (
            builtins.tuple, builtins.list, builtins.sum, builtins.max, builtins.min, builtins.all,
            builtins.any, math.fsum, math.dist, operator.contains, operator.countOf,
            operator.indexOf,
        ),
        _elements,
    ),
}  # fmt: skip
