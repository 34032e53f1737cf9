"""Lets g++ compile what Inductor writes around the kernels of a graph with thousands of operators.

That is one function with a call for each operator, and a constructor with a dozen assignments for
each weight. g++ takes time with the square of either: of 5000 operators, the wrapper took more than
300 s at `-O1`, which is torch's choice, 104 s at `-O0`, of which 75 went into the registers of the
constructor alone, and 29 s with that constructor in parts (torch 2.15.0, g++ 12, one core of an AMD
EPYC). A call of a thousand operators on 2 x 16 numbers takes 1.24 times as long then (1.09 to
1.35), 0.24 us an operator: the wrapper is a small part of what a large graph computes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._inductor import config
from torch._inductor.codecache import AotCodeCompiler
from torch.export import ExportedProgram

from handoff.tasks.compile.patching import replaced

# Operators from which the compiler's time is worth more than a call's. At 1000 it takes 22 s.
MANY = 2000
_OPTIONS = {"aot_inductor.compile_wrapper_opt_level": "O0"}
_WEIGHTS_AT_ONCE = 64
_FIELD = re.compile(r"\s*constants_info_\[\d+\]\.(\w+) = .*;\s*")
# A function of its own, however often it is called.
_BEGIN, _END = "    [&]() __attribute__((noinline)) {", "    }();"


@contextmanager
def compiled_in_parts(program: ExportedProgram) -> Iterator[None]:
    """Let what is compiled from a program of many operators in the body be compiled fast.

    Options that are given to Inductor go before what is chosen here; smaller programs are compiled
    as ever.
    """
    if sum(node.op == "call_function" for node in program.graph.nodes) <= MANY:
        yield
        return
    original = AotCodeCompiler.compile

    def compile_split(graph: Any, code: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return original(graph, split_constructor(code), *args, **kwargs)

    with (
        replaced(AotCodeCompiler, "compile", staticmethod(compile_split)),
        config.patch(_OPTIONS),
    ):
        yield


def split_constructor(code: str) -> str:
    """Return generated C++ with the description of every 64 weights in a function of its own."""
    lines: list[str] = []
    weights, is_open = 0, False
    for line in code.split("\n"):
        field = _FIELD.fullmatch(line)
        if field and field[1] == "name":
            if is_open and weights % _WEIGHTS_AT_ONCE == 0:
                lines.append(_END)
                is_open = False
            if not is_open:
                lines.append(_BEGIN)
                is_open = True
            weights += 1
        elif is_open and not field:
            lines.append(_END)
            is_open = False
        lines.append(line)
    return "\n".join(lines)
