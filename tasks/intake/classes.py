"""Which torch.nn classes a delivery may hold, and what their own code says of their attributes."""

from __future__ import annotations

import inspect
import sys
from functools import cache
from types import CodeType

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from handoff.tasks.intake.files.pickled import Global


@cache
def find_class(kind: Global) -> type[torch.nn.Module] | None:
    """Return the torch.nn class of that name, or None; nothing is imported for it."""
    if not kind.module.startswith("torch.nn.modules."):
        return None
    module = sys.modules.get(kind.module)
    found = vars(module).get(kind.name) if module is not None else None
    if not isinstance(found, type) or not issubclass(found, torch.nn.Module):
        return None
    is_own = found.__module__ == kind.module and found.__name__ == kind.name
    return found if is_own and not issubclass(found, LazyModuleMixin) else None


@cache
def known_names(kind: type) -> frozenset[str]:
    """Return every name that the class's own code mentions, below `torch.nn.Module`."""
    names: set[str] = set()
    for base in kind.__mro__:
        if base in (torch.nn.Module, object):
            continue
        names.update(vars(base).get("__annotations__", ()), vars(base).get("__constants__", ()))
        for member in vars(base).values():
            function = inspect.unwrap(getattr(member, "__func__", member))
            _collect_names(getattr(function, "__code__", None), names)
    return frozenset(names)


def _collect_names(code: CodeType | None, names: set[str]) -> None:
    if code is None:
        return
    names.update(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _collect_names(constant, names)
        elif isinstance(constant, str):
            names.add(constant)


@cache
def required_names(kind: type) -> frozenset[str]:
    """Return the attributes that the class declares and that its constructor sets."""
    names: set[str] = set()
    for base in kind.__mro__:
        if base not in (torch.nn.Module, object):
            stored: set[str] = set()
            _collect_names(getattr(vars(base).get("__init__"), "__code__", None), stored)
            names.update(stored.intersection(vars(base).get("__annotations__", ())))
    if issubclass(kind, torch.nn.RNNBase):
        names.add("_flat_weights_names")
    return frozenset(names - {"_flat_weights"})
