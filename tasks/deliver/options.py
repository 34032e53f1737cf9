"""What may be said of a model's inputs when it is delivered: each mistake in it is one sentence."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any

from handoff.artifacts.delivery.signature import Dimension, require_identifier
from handoff.artifacts.errors import UsageProblem, tensors_meant
from handoff.artifacts.printable import one_line
from handoff.tasks.deliver.capture.calls import Tensors

_SHOWN = 80


def require_call(
    name: object, keywords: object, batch_invariant: object, options: Mapping[str, object]
) -> None:
    """Raise `UsageProblem` for arguments of `deliver` that are of another kind than they should be.

    `options` are those that are mappings, or None.
    """
    if not isinstance(name, str):
        raise _refuse("the model's name is no text", "a name such as 'ranker'", name,
                      "Write name='ranker'")  # fmt: skip
    is_named = isinstance(keywords, Mapping) and all(isinstance(key, str) for key in keywords)
    if keywords is not None and not is_named:
        raise _refuse("example_kwargs names no arguments", "{'mask': tensor}", keywords,
                      "Write example_kwargs={ARGUMENT: VALUE}")  # fmt: skip
    if not isinstance(batch_invariant, bool):
        raise _refuse("batch_invariant is no truth value", "True or False", batch_invariant,
                      "Write batch_invariant=False if rows depend on each other")  # fmt: skip
    forms = {
        "dynamic": "{'x': {0: 'batch'}}", "dimensions": "{'batch': (1, 64)}",
        "ranges": "{'x': (0, 1)}",
    }  # fmt: skip
    for option, given in options.items():
        if given is not None and not isinstance(given, Mapping):
            raise _refuse(f"{option} is no dictionary", forms[option], given,
                          f"Write {option}={forms[option]}")  # fmt: skip


def require_axes(names: Sequence[str], inputs: Tensors, dynamic: Mapping[str, object]) -> None:
    """Raise `UsageProblem` unless `dynamic` names axes that the inputs, of any shapes, have."""
    require_known("dynamic names the input", dynamic, names)
    for name, tensor in zip(names, inputs, strict=True):
        axes = dynamic.get(name, {})
        if not isinstance(axes, Mapping):
            meant = [axis for axis in _listed(axes) if _is_whole(axis)]
            named = {axis: "batch" if axis == 0 else f"axis{axis}" for axis in meant}
            raise _refuse(
                f"dynamic[{name!r}] doesn't name its dimensions", "{AXIS: DIMENSION}", axes,
                f"Write dynamic={{{name!r}: {named or {0: 'batch'}}}}",
            )  # fmt: skip
        for axis, dimension in axes.items():
            _require_axis(name, tensor.dim(), axis)
            _require_dimension(name, axis, dimension)


def _require_axis(name: str, rank: int, axis: object) -> None:
    if _is_whole(axis) and axis in range(rank):
        return
    there = f"one of its axes, 0 to {rank - 1}" if rank else "no axis, because it is a scalar"
    remedy = "Name an axis that it has, or leave it out"
    if isinstance(axis, int) and -rank <= axis < 0:
        remedy = f"Write {axis + rank}: axes are counted from the front"
    elif isinstance(axis, str) and axis.isdecimal():
        remedy = f"Write {int(axis)}, without quotes"
    raise _refuse(f"dynamic[{name!r}] names an axis that isn't there", there, axis, remedy)


def _require_dimension(name: str, axis: object, dimension: object) -> None:
    what = f"dynamic[{name!r}][{axis}] is no name of a dimension"
    if not isinstance(dimension, str):
        remedy = "Give it a name here, and its sizes under that name in dimensions"
        raise _refuse(what, "a name such as 'batch'", dimension, remedy)
    try:
        require_identifier(dimension, "a dynamic dimension")
    except ValueError as error:
        expected = "letters, digits and '_', such as 'batch'"
        remedy = "Give it such a name"
        # As torch.export has it.
        if product := re.fullmatch(r"\s*([1-9]\d{0,5})\s*\*\s*([A-Za-z]\w*)\s*", dimension):
            number, name = int(product[1]), product[2]
            most = max(number, 512 // number * number)
            remedy = f"Write {name!r} here, and dimensions={{{name!r}: {(number, most, number)}}}"
        raise _refuse(what, expected, dimension, remedy) from error


def require_limits(dimensions: Mapping[str, object], used: Sequence[str]) -> None:
    """Raise `UsageProblem` unless `dimensions` has a smallest and a largest size for each name.

    A third number is the one whose multiples alone are sizes.
    """
    require_known("dimensions names the dimension", dimensions, used)
    for name, given in dimensions.items():
        what, form = f"dimensions[{name!r}] is no range of sizes", "(SMALLEST, LARGEST)"
        pair = _listed(given)
        if _is_whole(given):
            raise _refuse(what, form, given, f"Write dimensions={{{name!r}: (1, {given})}}")
        if len(pair) not in (2, 3) or not all(map(_is_whole, pair)):
            raise _refuse(what, f"{form} or (SMALLEST, LARGEST, MULTIPLE), whole numbers",
                          given, f"Write dimensions={{{name!r}: (1, 64)}}")  # fmt: skip
        least, most = pair[:2]
        if least < 0 or most < 0:
            meant = (max(least, 1), max(most, 1))
            raise _refuse(what, "sizes of 0 or more", given,
                          f"Write dimensions={{{name!r}: {meant}}}")  # fmt: skip
        if least > most:
            raise _refuse(what, f"{form}, the smaller one first", given,
                          f"Write dimensions={{{name!r}: {(most, least, *pair[2:])}}}")  # fmt: skip
        if len(pair) == 3:
            _require_multiples(name, least, most, pair[2])


def _require_multiples(name: str, least: int, most: int, number: int) -> None:
    if number >= 1 and least % number == most % number == 0:
        return
    left = Dimension(least, most).narrowed(number) if number >= 1 else None
    meant = (left.min, left.max, number) if left else (least, most)
    raise _refuse(
        f"dimensions[{name!r}] is no range of multiples",
        "(SMALLEST, LARGEST, MULTIPLE), of which the last divides the others",
        (least, most, number), f"Write dimensions={{{name!r}: {meant}}}",
    )  # fmt: skip


def require_ranges(names: Sequence[str], inputs: Tensors, ranges: Mapping[str, object]) -> None:
    """Raise `UsageProblem` unless `ranges` has a low and a high value, and the example in between.

    The inputs may be of any shapes and dtypes; only values of whole numbers are looked at.
    """
    require_known("ranges names the input", ranges, names)
    for name, tensor in zip(names, inputs, strict=True):
        if name not in ranges:
            continue
        what, given = f"ranges[{name!r}] is no range of values", ranges[name]
        pair = _listed(given)
        if len(pair) != 2 or not all(map(_is_number, pair)):
            first = f"(0, {given})" if _is_number(given) else "(0, 1)"
            raise _refuse(what, "(LOW, HIGH), two finite numbers", given,
                          f"Write ranges={{{name!r}: {first}}}")  # fmt: skip
        low, high = pair
        if low > high:
            raise _refuse(what, "(LOW, HIGH), the lower one first", given,
                          f"Write ranges={{{name!r}: ({high}, {low})}}")  # fmt: skip
        if tensor.is_floating_point() or tensor.is_complex() or not tensor.numel():
            continue
        least, most = int(tensor.min()), int(tensor.max())
        if not low <= least <= most <= high:
            raise UsageProblem(
                f"the example of {name} lies beyond ranges[{name!r}]", got=f"{least} to {most}",
                expected=f"values from {low} to {high}",
                remedy=f"Write ranges={{{name!r}: ({min(low, least)}, {max(high, most)})}}, or give"
                " an example within the range",
            )  # fmt: skip


def require_known(what: str, given: Mapping[str, object], known: Sequence[str]) -> None:
    """Raise `UsageProblem` where `given` has another name than those that are known."""
    unknown = [name for name in given if name not in known]
    if unknown:
        raise UsageProblem(
            f"{what} {unknown[0]}", expected=f"one of {', '.join(known) or 'none at all'}",
            got=str(unknown[0]), remedy=tensors_meant(str(unknown[0]), known, "Fix that name"),
        )  # fmt: skip


def _listed(given: object) -> list[Any]:
    return list(given) if isinstance(given, tuple | list) else []


def _is_whole(given: object) -> bool:
    return isinstance(given, numbers.Integral) and not isinstance(given, bool)


def _is_number(given: object) -> bool:
    return isinstance(given, numbers.Real) and not isinstance(given, bool) and math.isfinite(given)


def _refuse(what: str, expected: str, got: object, remedy: str) -> UsageProblem:
    told = one_line(repr(got))
    shown = told if len(told) <= _SHOWN else told[: _SHOWN - 3] + "..."
    return UsageProblem(what, expected=expected, got=shown, remedy=remedy)
