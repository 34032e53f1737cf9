"""Lets a package check its inputs by default, against the ranges that were declared.

AOTInductor emits checks of every input's dtype, sizes, strides and device, and leaves them off
unless the serving process sets `AOTI_RUNTIME_CHECK_INPUTS`: another dtype is then read as if it
were the right one. The ranges that it emits are not those that were declared, either: one from 1 is
checked as one from 2, because `torch.export` takes 1 for a case of its own, and one that the
compiler had to choose in (`batch < 16`, to pick a convolution's implementation) is cut short; that
sizes are multiples isn't checked at all. All
of that is fixed in the C++ that is about to be compiled; Inductor has no option for it (torch 2.11
to 2.15). What was assumed is reported, so that it is compared beyond it; a dimension that was fixed
is refused. `AOTI_RUNTIME_CHECK_INPUTS=0` turns the checks off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._inductor.codecache import AotCodeCompiler
from torch.export import ExportedProgram
from torch.utils._sympy.value_ranges import bound_sympy

from handoff.artifacts.delivery.signature import Dimension
from handoff.artifacts.errors import BlessingRefused, EnvironmentLacking
from handoff.tasks.compile.messages import AssumedRange
from handoff.tasks.compile.patching import patch_attribute
from handoff.tasks.optimize.ranges import to_dimension

# Place of an input, and its axis.
Axis = tuple[int, int]

_OFF_BY_DEFAULT = "env_var_value != nullptr && env_var_value[0] != '0'"
_ON_BY_DEFAULT = "env_var_value == nullptr || env_var_value[0] != '0'"
_CHECK = re.compile(r"(?=static void check_input_\d+\()")
_PLACE = re.compile(r"static void check_input_(\d+)")
_TOO_SMALL = re.compile(r"(_size\[(\d+)\] < )(\d+)(\).*?expected it to be >= )\d+", re.DOTALL)
_TOO_LARGE = re.compile(r"(_size\[(\d+)\] > )(\d+)(\).*?expected to be <= )\d+", re.DOTALL)
_STRIDE = re.compile(r"if \((\d+) != (\w+)_stride\[(\d+)\]\)")
_SIZES_END = re.compile(r"(?=    auto (\w+)_stride = )")
_FIXED_SIZE = re.compile(r"if \((\d+) != \w+_size\[(\d+)\]\)")


@contextmanager
def enable_input_checks(program: ExportedProgram) -> Iterator[list[AssumedRange]]:
    """Let what is compiled from `program` in the body check its inputs by default.

    The list is filled with what the compiler assumed. Raises `BlessingRefused` where it fixed a
    dimension that is declared as dynamic, and `EnvironmentLacking` where this torch emits something
    else than what is fixed here.
    """
    declared = declared_ranges(program)
    original = AotCodeCompiler.compile
    assumed: list[AssumedRange] = []

    def compile_checked(graph: Any, code: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        checked, narrowed = enable_checks(code, declared)
        assumed.extend(narrowed)
        return original(graph, checked, *args, **kwargs)

    with patch_attribute(AotCodeCompiler, "compile", staticmethod(compile_checked)):
        yield assumed


def enable_checks(code: str, declared: Mapping[Axis, Dimension]) -> tuple[str, list[AssumedRange]]:
    """Return generated C++ whose checks are on and as declared, and what it had assumed instead."""
    if code.count(_OFF_BY_DEFAULT) != 1:
        raise _unknown_code_error()
    first, *checks = _CHECK.split(code.replace(_OFF_BY_DEFAULT, _ON_BY_DEFAULT))
    assumed: dict[Axis, Dimension] = {}
    corrected = [first, *(_declare_bounds(check, declared, assumed) for check in checks)]
    return "".join(corrected), [
        AssumedRange(place, axis, limits.min, limits.max)
        for (place, axis), limits in assumed.items()
    ]


def _declare_bounds(
    check: str, declared: Mapping[Axis, Dimension], assumed: dict[Axis, Dimension]
) -> str:
    """Put the declared bounds into the check of one input; note those that were narrower."""
    header = _PLACE.match(check)
    assert header is not None
    place = int(header[1])
    for size, axis in _FIXED_SIZE.findall(check):
        if (place, int(axis)) in declared:
            raise _fixed_dimension_error(place, int(axis), size, declared[place, int(axis)])
    emitted = {int(axis): [2, 1 << 62] for _, axis, _, _ in _TOO_SMALL.findall(check)}

    def replace_bound(match: re.Match[str], end: int) -> str:
        axis = int(match[2])
        limits = declared.get((place, axis))
        emitted.setdefault(axis, [0, 1 << 62])[end] = int(match[3])
        if limits is None:
            return match[0]
        limit = limits.max if end else limits.min
        return f"{match[1]}{limit}{match[4]}{limit}"

    # Of an axis of one element the stride says nothing: a row taken out of a table has the table's.
    check = _STRIDE.sub(r"if (\1 != \2_stride[\3] && \2_size[\3] != 1)", check)
    check = _TOO_SMALL.sub(lambda match: replace_bound(match, 0), check)
    check = _TOO_LARGE.sub(lambda match: replace_bound(match, 1), check)
    check = _add_multiple_checks(check, place, declared)
    for axis, (low, high) in emitted.items():
        limits = declared.get((place, axis))
        least = max(limits.min, 2 * limits.multiple_of) if limits else 0
        if limits is not None and (low > least or high < limits.max):
            assumed[place, axis] = Dimension(low, high)
    return check


def _add_multiple_checks(check: str, place: int, declared: Mapping[Axis, Dimension]) -> str:
    """Add a check of each axis of an input that takes multiples alone, for which torch emits none.

    Raises `EnvironmentLacking` where this torch's code has no place for it.
    """
    steps = {
        axis: limits.multiple_of for (of, axis), limits in declared.items()
        if of == place and limits.multiple_of > 1
    }  # fmt: skip
    if not steps:
        return check
    end_of_sizes = _SIZES_END.search(check)
    if end_of_sizes is None:
        raise _unknown_code_error()
    size = f"{end_of_sizes[1]}_size"
    added = "".join(
        f"    if ({size}[{axis}] % {step} != 0) {{\n"
        f'        throw std::runtime_error("input_handles[{place}]: dim value at {axis}, expected '
        f'a multiple of {step}, but got: " + std::to_string({size}[{axis}]));\n    }}\n'
        for axis, step in sorted(steps.items())
    )
    return check[: end_of_sizes.start()] + added + check[end_of_sizes.start() :]


def _unknown_code_error() -> EnvironmentLacking:
    return EnvironmentLacking(
        "packages can't be made to check their inputs",
        expected="code as torch 2.11 to 2.15 generates it",
        got=f"something else from torch {torch.__version__}",
        remedy="Build with one of those, or fix tasks/compile/input_checks.py",
    )


def _fixed_dimension_error(place: int, axis: int, size: str, limits: Dimension) -> BlessingRefused:
    return BlessingRefused(
        f"the compiler fixed axis {axis} of input {place} at {size}",
        expected=f"a package for {limits}, as the delivery declares",
        got=f"one for {size} alone",
        remedy="Leave the option out that does it ('freezing' is one), or declare that size",
    )


def declared_ranges(program: ExportedProgram) -> dict[Axis, Dimension]:
    """Return the range of each dynamic axis of the program's inputs."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    ranges: dict[Axis, Dimension] = {}
    for place, name in enumerate(program.graph_signature.user_inputs):
        value = nodes[str(name)].meta["val"]
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                expression, constraints = size.node.expr, program.range_constraints
                # Of multiples, both are there: from 1 on of them as declared, and from 2 computed.
                limits = to_dimension(
                    constraints.get(expression) or bound_sympy(expression, constraints)
                )
                factor, _ = expression.as_coeff_Mul()
                ranges[place, axis] = limits.restrict_to_multiples(max(int(factor), 1)) or limits
    return ranges
