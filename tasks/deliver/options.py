"""What may be said of a model's inputs when it is delivered: each mistake in it is one sentence."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any

from handoff.artifacts.delivery.signature import Dimension, require_identifier
from handoff.artifacts.errors import UsageProblem, suggest_tensor_inputs
from handoff.artifacts.printable import one_line
from handoff.tasks.deliver.capture.calls import Tensors

_LONGEST_VALUE = 80


def require_call(
    name: object, keywords: object, batch_invariant: object, options: Mapping[str, object]
) -> None:
    """Raise `UsageProblem` for arguments of `deliver` that are of another kind than they should be.

    `options` are those that are mappings, or None.
    """
    if not isinstance(name, str):
        raise _refuse("the model's name is no text", "a name such as 'ranker'", name,
                      "Write name='ranker'")  # fmt: skip
    names_arguments = isinstance(keywords, Mapping) and all(
        isinstance(key, str) for key in keywords
    )
    if keywords is not None and not names_arguments:
        raise _refuse("example_kwargs names no arguments", "{'mask': tensor}", keywords,
                      "Write example_kwargs={ARGUMENT: VALUE}")  # fmt: skip
    if not isinstance(batch_invariant, bool):
        raise _refuse("batch_invariant is no truth value", "True or False", batch_invariant,
                      "Write batch_invariant=False if rows depend on each other")  # fmt: skip
    forms = {
        "dynamic": "{'x': {0: 'batch'}}", "dimensions": "{'batch': (1, 64)}",
        "ranges": "{'x': (0, 1)}",
    }  # fmt: skip
    for option, value in options.items():
        if value is not None and not isinstance(value, Mapping):
            raise _refuse(f"{option} is no dictionary", forms[option], value,
                          f"Write {option}={forms[option]}")  # fmt: skip


def require_axes(names: Sequence[str], inputs: Tensors, dynamic: Mapping[str, object]) -> None:
    """Raise `UsageProblem` unless `dynamic` names axes that the inputs, of any shapes, have."""
    require_known("dynamic names the input", dynamic, names)
    for name, tensor in zip(names, inputs, strict=True):
        axes = dynamic.get(name, {})
        if not isinstance(axes, Mapping):
            integers = [axis for axis in _to_list(axes) if _is_integer(axis)]
            suggestion = {axis: "batch" if axis == 0 else f"axis{axis}" for axis in integers}
            raise _refuse(
                f"dynamic[{name!r}] doesn't name its dimensions", "{AXIS: DIMENSION}", axes,
                f"Write dynamic={{{name!r}: {suggestion or {0: 'batch'}}}}",
            )  # fmt: skip
        for axis, dimension in axes.items():
            _require_axis(name, tensor.dim(), axis)
            _require_dimension(name, axis, dimension)


def _require_axis(name: str, rank: int, axis: object) -> None:
    if _is_integer(axis) and axis in range(rank):
        return
    expected = f"one of its axes, 0 to {rank - 1}" if rank else "no axis, because it is a scalar"
    remedy = "Name an axis that it has, or leave it out"
    if isinstance(axis, int) and -rank <= axis < 0:
        remedy = f"Write {axis + rank}: axes are counted from the front"
    elif isinstance(axis, str) and axis.isdecimal():
        remedy = f"Write {int(axis)}, without quotes"
    raise _refuse(f"dynamic[{name!r}] names an axis that isn't there", expected, axis, remedy)


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
    for name, limits in dimensions.items():
        what, form = f"dimensions[{name!r}] is no range of sizes", "(SMALLEST, LARGEST)"
        sizes = _to_list(limits)
        if _is_integer(limits):
            raise _refuse(what, form, limits, f"Write dimensions={{{name!r}: (1, {limits})}}")
        if len(sizes) not in (2, 3) or not all(map(_is_integer, sizes)):
            raise _refuse(what, f"{form} or (SMALLEST, LARGEST, MULTIPLE), whole numbers",
                          limits, f"Write dimensions={{{name!r}: (1, 64)}}")  # fmt: skip
        least, most = sizes[:2]
        if least < 0 or most < 0:
            suggestion = (max(least, 1), max(most, 1))
            raise _refuse(what, "sizes of 0 or more", limits,
                          f"Write dimensions={{{name!r}: {suggestion}}}")  # fmt: skip
        if least > most:
            suggestion = (most, least, *sizes[2:])
            raise _refuse(what, f"{form}, the smaller one first", limits,
                          f"Write dimensions={{{name!r}: {suggestion}}}")  # fmt: skip
        if len(sizes) == 3:
            _require_multiples(name, least, most, sizes[2])


def _require_multiples(name: str, least: int, most: int, number: int) -> None:
    if number >= 1 and least % number == most % number == 0:
        return
    multiples = Dimension(least, most).restrict_to_multiples(number) if number >= 1 else None
    suggestion = (multiples.min, multiples.max, number) if multiples else (least, most)
    raise _refuse(
        f"dimensions[{name!r}] is no range of multiples",
        "(SMALLEST, LARGEST, MULTIPLE), of which the last divides the others",
        (least, most, number), f"Write dimensions={{{name!r}: {suggestion}}}",
    )  # fmt: skip


def require_ranges(names: Sequence[str], inputs: Tensors, ranges: Mapping[str, object]) -> None:
    """Raise `UsageProblem` unless `ranges` has a low and a high value, and the example in between.

    The inputs may be of any shapes and dtypes; only values of whole numbers are looked at.
    """
    require_known("ranges names the input", ranges, names)
    for name, tensor in zip(names, inputs, strict=True):
        if name not in ranges:
            continue
        what, limits = f"ranges[{name!r}] is no range of values", ranges[name]
        pair = _to_list(limits)
        if len(pair) != 2 or not all(map(_is_number, pair)):
            suggestion = f"(0, {limits})" if _is_number(limits) else "(0, 1)"
            raise _refuse(what, "(LOW, HIGH), two finite numbers", limits,
                          f"Write ranges={{{name!r}: {suggestion}}}")  # fmt: skip
        low, high = pair
        if low > high:
            raise _refuse(what, "(LOW, HIGH), the lower one first", limits,
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


def require_known(what: str, names: Mapping[str, object], known: Sequence[str]) -> None:
    """Raise `UsageProblem` where `names` has another name than those that are known."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageProblem(
            f"{what} {unknown[0]}", expected=f"one of {', '.join(known) or 'none at all'}",
            got=str(unknown[0]),
            remedy=suggest_tensor_inputs(str(unknown[0]), known, "Fix that name"),
        )  # fmt: skip


def _to_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else []


def _is_integer(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _refuse(what: str, expected: str, got: object, remedy: str) -> UsageProblem:
    text = one_line(repr(got))
    shown = text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."
    return UsageProblem(what, expected=expected, got=shown, remedy=remedy)
