"""Which operators a delivered graph may call: torch's own, and those of the recipe's extensions."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.fx

BUILT_IN = frozenset({"aten", "prims"})
# The namespace of `tasks.optimize.kernels`, whose operators passes put in and deliveries don't
# bring.
OWN_NAMESPACE = "handoff"
_allowed: set[str] = set()


def allow_namespaces(namespaces: Iterable[str]) -> None:
    """Let delivered graphs call the operators of these namespaces, in this whole process."""
    _allowed.update(namespaces)


def allowed_namespaces() -> frozenset[str]:
    """Return the namespaces whose operators a delivered graph may call in this process."""
    return BUILT_IN | _allowed


def own_namespaces(nodes: Iterable[torch.fx.Node]) -> frozenset[str]:
    """Return the namespaces of the operators that these nodes call, without torch's own."""
    targets = [node.target for node in nodes if node.op == "call_function"]
    operators = [t for t in targets if isinstance(t, (torch._ops.OpOverload,
                                                      torch._ops.OpOverloadPacket))]  # fmt: skip
    names = {str(getattr(target, "_qualified_op_name", target)) for target in operators}
    found = {name.replace("::", ".").partition(".")[0] for name in names}
    return frozenset(found) - BUILT_IN


def registered_namespaces() -> frozenset[str]:
    """Return every namespace that has an operator in this process, without our own."""
    names = torch._C._dispatch_get_all_op_names()
    return frozenset(name.partition("::")[0] for name in names) - {OWN_NAMESPACE}
