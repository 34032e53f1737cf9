"""Operator libraries: Python modules that register operators with `torch.library`.

A delivered graph may call the operators of a library that the recipe names. The library is code of
the deploy side's choosing, never the delivery's; it is imported in the processes that need it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

import torch
import torch.fx

from artifacts.errors import UsageProblem

BUILT_IN = frozenset({"aten", "prims"})
_loaded: set[str] = set()


def load_library(module: str) -> frozenset[str]:
    """Import `module` and let graphs call the operators that it registers; return their namespaces.

    It holds for the whole process, as torch's table of operators does. Raises `UsageProblem` for a
    module that can't be imported or registers nothing.
    """
    before = _registered()
    try:
        importlib.import_module(module)
    except Exception as error:
        raise UsageProblem(
            f"the operator library {module} can't be imported",
            expected="an installed Python module that registers operators with torch.library",
            got=f"{type(error).__name__}: {error}",
            remedy="Install it beside Handoff, or mend the name under 'operators' in the recipe",
        ) from error
    added = _registered() - before
    if not added:
        raise UsageProblem(
            f"the operator library {module} registers no operators of its own",
            expected="a namespace that torch.ops didn't have before", got="none",
            remedy="Mend the name under 'operators' in the recipe",
        )  # fmt: skip
    _loaded.update(added)
    return frozenset(added)


def allowed_namespaces() -> frozenset[str]:
    """Return the namespaces whose operators a delivered graph may call in this process."""
    return BUILT_IN | _loaded


def own_namespaces(nodes: Iterable[torch.fx.Node]) -> frozenset[str]:
    """Return the namespaces of the operators that these nodes call, without torch's own."""
    targets = [node.target for node in nodes if node.op == "call_function"]
    operators = [t for t in targets if isinstance(t, (torch._ops.OpOverload,
                                                      torch._ops.OpOverloadPacket))]  # fmt: skip
    names = {str(getattr(target, "_qualified_op_name", target)) for target in operators}
    found = {name.replace("::", ".").partition(".")[0] for name in names}
    return frozenset(found) - BUILT_IN


def _registered() -> set[str]:
    names = torch._C._dispatch_get_all_op_names()
    return {name.partition("::")[0] for name in names}
