"""Leaves parts of the compiler out, at the places where torch's own CompilerBisector does.

`torch._inductor.compiler_bisector.CompilerBisector` asks at each decomposition, graph pass and
lowering whether it is to be left out, and is told by environment variables that it reads once, or
by files. Here its one question, `disable_subsystem`, is answered by a function instead (torch 2.11
to 2.15), which also sees what is asked about.
"""

from __future__ import annotations

import re
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch._inductor.compiler_bisector import CompilerBisector

from handoff.artifacts.messages.localization import LeaveOut, Site, Subsystem
from handoff.tasks.compile.patching import replaced

_OPERATOR = re.compile(r"<OpOverload\(op='(.+)', overload='(.+)'\)>")
_KNOWN: tuple[Subsystem, ...] = typing.get_args(Subsystem)


@contextmanager
def left_out(parts: Sequence[LeaveOut]) -> Iterator[list[Site]]:
    """Compile without `parts` in the body; the list is filled with all places that were met."""
    sites: list[Site] = []
    met: Counter[str] = Counter()

    def disable_subsystem(
        _backend: str, subsystem: str, debug_info: Callable[[], str] | None = None
    ) -> bool:
        if subsystem not in _KNOWN:
            return False
        index = met[subsystem]
        met[subsystem] += 1
        sites.append(Site(subsystem, index, _name(debug_info() if debug_info else "")))
        return any(p.subsystem == subsystem and p.first <= index < p.last for p in parts)

    with replaced(CompilerBisector, "disable_subsystem", staticmethod(disable_subsystem)):
        yield sites


def _name(said: str) -> str:
    """Return an operator as it is written in a graph, and anything else as it is."""
    return _OPERATOR.sub(r"\1.\2", said)
