"""Lets a package check its inputs by default, against the ranges that were declared.

AOTInductor emits checks of every input's dtype, sizes, strides and device, and leaves them off
unless the serving process sets `AOTI_RUNTIME_CHECK_INPUTS`: another dtype is then read as if it
were the right one. And a range from 1 is checked as one from 2, because `torch.export` takes 1 for
a case of its own. Both are mended in the C++ that is about to be compiled; Inductor has no option
for either (torch 2.11 to 2.15). `AOTI_RUNTIME_CHECK_INPUTS=0` turns the checks off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._inductor.codecache import AotCodeCompiler
from torch.export import ExportedProgram

from artifacts.errors import EnvironmentLacking
from tasks.compiling.patching import replaced

_OFF_BY_DEFAULT = "env_var_value != nullptr && env_var_value[0] != '0'"
_ON_BY_DEFAULT = "env_var_value == nullptr || env_var_value[0] != '0'"
_TOO_SMALL = re.compile(r"(_size\[(\d+)\] < )2(\))(.*?expected it to be >= )2(\b)", re.DOTALL)


@contextmanager
def checked_inputs(program: ExportedProgram) -> Iterator[None]:
    """Let what is compiled from `program` in the body check its inputs unless told not to.

    Raises `EnvironmentLacking` where this torch emits something else than what is mended here.
    """
    smallest = _smallest_sizes(program)
    original = AotCodeCompiler.compile

    def compile_checked(graph: Any, code: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return original(graph, turn_on(code, smallest), *args, **kwargs)

    with replaced(AotCodeCompiler, "compile", staticmethod(compile_checked)):
        yield


def turn_on(code: str, smallest: Mapping[tuple[int, int], int]) -> str:
    """Return generated C++ whose input checks are on, from the `smallest` sizes that are declared.

    `smallest` maps an input's place and an axis to a size below 2.
    """
    if code.count(_OFF_BY_DEFAULT) != 1:
        raise EnvironmentLacking(
            "packages can't be made to check their inputs",
            expected="code as torch 2.11 to 2.15 generates it",
            got=f"something else from torch {torch.__version__}",
            remedy="Build with one of those, or mend tasks/compiling/input_checks.py",
        )
    code = code.replace(_OFF_BY_DEFAULT, _ON_BY_DEFAULT)
    parts = re.split(r"(?=static void check_input_\d+\()", code)
    return "".join(parts[:1] + [_with_smallest(part, smallest) for part in parts[1:]])


def _with_smallest(check: str, smallest: Mapping[tuple[int, int], int]) -> str:
    place = int(re.match(r"static void check_input_(\d+)", check).group(1))  # type: ignore[union-attr]

    def mend(found: re.Match[str]) -> str:
        size = smallest.get((place, int(found.group(2))), 2)
        return f"{found.group(1)}{size}{found.group(3)}{found.group(4)}{size}{found.group(5)}"

    return _TOO_SMALL.sub(mend, check)


def _smallest_sizes(program: ExportedProgram) -> dict[tuple[int, int], int]:
    """Return the declared minimum of each dynamic axis of an input that may be below 2."""
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    found: dict[tuple[int, int], int] = {}
    for place, name in enumerate(program.graph_signature.user_inputs):
        value = nodes[str(name)].meta["val"]
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            symbol = size.node.expr if isinstance(size, torch.SymInt) else None
            limits = program.range_constraints.get(symbol)
            if limits is not None and int(limits.lower) < 2:
                found[place, axis] = int(limits.lower)
    return found
