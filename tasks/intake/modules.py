"""Makes fresh torch.nn modules from descriptions, against what their classes may hold.

A module is made without its constructor (no weight is drawn at random), and gets: plain values
under names that its class knows, parameters, buffers, children. A hook, an attribute that hides a
method, or a value of any other kind is refused.
"""

from __future__ import annotations

import inspect
import re
import sys
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from handoff.tasks.intake.errors import refuse
from handoff.tasks.intake.files.pickled import Call, Global, Instance
from handoff.tasks.intake.files.tensors import TensorFile, find_dtype
from handoff.tasks.intake.functions import NAME, resolve
from handoff.tasks.intake.module_source import LayerSource
from handoff.tasks.intake.string_arguments import TextRefused, check_attribute


@cache
def find_class(kind: Global) -> type[torch.nn.Module] | None:
    """Return the torch.nn class of that name, or None; nothing is imported for it."""
    if not kind.module.startswith("torch.nn.modules."):
        return None
    module = sys.modules.get(kind.module)
    value = vars(module).get(kind.name) if module is not None else None
    if not isinstance(value, type) or not issubclass(value, torch.nn.Module):
        return None
    is_own = value.__module__ == kind.module and value.__name__ == kind.name
    return value if is_own and not issubclass(value, LazyModuleMixin) else None


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
            assigned: set[str] = set()
            _collect_names(getattr(vars(base).get("__init__"), "__code__", None), assigned)
            names.update(assigned.intersection(vars(base).get("__annotations__", ())))
    if issubclass(kind, torch.nn.RNNBase):
        names.add("_flat_weights_names")
    return frozenset(names - {"_flat_weights"})


_MEMBER_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")
_HOOKS = frozenset(
    name for name in vars(torch.nn.Module()) if name.endswith(("_hooks", "_with_kwargs"))
) | {"_forward_hooks_always_called"}
_STRUCTURE = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"})
_IGNORED = {"training", "_is_full_backward_hook", "_compiled_call_impl", "_backend_compile"}
_FUNCTION_ATTRIBUTE = "activation"
_MAX_VALUES = 200_000
_MAX_DEPTH = 12
_MAX_MODULES_DEPTH = 50


def build_layer(layer: LayerSource, where: str) -> torch.nn.Module:
    """Return the layer that its repr describes, on the meta device: shapes without memory."""
    kind: Any = getattr(torch.nn, layer.kind)
    kwargs = dict(layer.kwargs)
    # BatchNorm's repr says bias=True in newer torch; an older constructor has no such word.
    if kwargs.get("bias") is True and "bias" not in inspect.signature(kind).parameters:
        del kwargs["bias"]
    try:
        with torch.device("meta"):
            module: torch.nn.Module = kind(*layer.args, **kwargs)
    except (TypeError, ValueError, RuntimeError, OverflowError, ZeroDivisionError) as error:
        raise refuse(
            f"module.py describes a {layer.kind} that torch {torch.__version__} can't make",
            expected=f"the repr of a {layer.kind}",
            got=str(error),
            where=where,
        ) from error
    return module


class ModuleBuilder:
    """Makes the module that one child's `.pt` file describes."""

    def __init__(self, file: TensorFile) -> None:
        """Take the file, whose tensors become the module's."""
        self._file = file
        self._built: dict[int, torch.nn.Module] = {}
        self._unfinished: set[int] = set()
        self._parameters: dict[int, torch.nn.Parameter] = {}
        self._remaining = _MAX_VALUES
        self.training: list[str] = []
        self.ignored: list[str] = []

    def build(self) -> torch.nn.Module:
        """Return the module; raise `DeliveryUnreadable` where it doesn't keep to the schema."""
        if not isinstance(self._file.content, Instance):
            raise self._refuse("one module", type(self._file.content).__name__)
        return self._build_module(self._file.content, "", 0)

    def _refuse(self, expected: str, got: object, remedy: str | None = None) -> Exception:
        where = self._file.where
        what = f"{where} holds more than a torch.nn module"
        if remedy is None:
            return refuse(what, expected=expected, got=got, where=where)
        return refuse(what, expected=expected, got=got, where=where, remedy=remedy)

    def _build_module(self, instance: Instance, path: str, depth: int) -> torch.nn.Module:
        if id(instance) in self._built:
            if id(instance) in self._unfinished:
                raise self._refuse("a tree of modules", f"a module inside itself at {path}")
            return self._built[id(instance)]
        kind = find_class(instance.kind)
        if kind is None or depth > _MAX_MODULES_DEPTH:
            raise self._refuse(
                "classes of torch.nn",
                f"{instance.kind} at {path or 'the top'}",
                "Deliver the model with 'handoff deliver', which traces into modules that are "
                "not torch.nn's own",
            )
        module: torch.nn.Module = kind.__new__(kind)
        torch.nn.Module.__init__(module)
        self._built[id(instance)] = module
        self._unfinished.add(id(instance))
        state = instance.state
        for name in state:
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise self._refuse("attributes with plain names", name)
        self._fill_tensors(module, state, path)
        self._fill_children(module, state, path, depth)
        for name, value in state.items():
            if name not in _STRUCTURE:
                self._fill_attribute(module, str(name), value, path)
        self._check_complete(module, path)
        self._unfinished.discard(id(instance))
        return module

    def _read_members(self, state: dict[object, object], key: str) -> list[tuple[str, object]]:
        items = state.get(key, {})
        if not isinstance(items, dict):
            raise self._refuse(f"{key} as a dictionary", type(items).__name__)
        self._remaining -= len(items)
        if self._remaining < 0:
            raise self._refuse(f"at most {_MAX_VALUES} values", "more")
        members = []
        for name, value in items.items():
            if not isinstance(name, str) or not _MEMBER_NAME.fullmatch(name):
                raise self._refuse("parameters, buffers and children with plain names", name)
            members.append((name, value))
        return members

    def _fill_tensors(
        self, module: torch.nn.Module, state: dict[object, object], path: str
    ) -> None:
        for name, value in self._read_members(state, "_parameters"):
            self._check_shadow(module, name, path)
            module._parameters[name] = None if value is None else self._build_parameter(value)
        for name, value in self._read_members(state, "_buffers"):
            self._check_shadow(module, name, path)
            module._buffers[name] = None if value is None else self._file.tensor(value)
        transient = state.get("_non_persistent_buffers_set", set())
        if not isinstance(transient, set) or not transient <= set(module._buffers):
            raise self._refuse("a set of buffers' names", transient)
        module._non_persistent_buffers_set.update(transient)

    def _build_parameter(self, description: object) -> torch.nn.Parameter:
        tensor = self._file.tensor(description)
        if id(tensor) not in self._parameters:
            self._parameters[id(tensor)] = torch.nn.Parameter(tensor, requires_grad=False)
        return self._parameters[id(tensor)]

    def _fill_children(
        self, module: torch.nn.Module, state: dict[object, object], path: str, depth: int
    ) -> None:
        for name, value in self._read_members(state, "_modules"):
            self._check_shadow(module, name, path)
            child_path = f"{path}.{name}" if path else name
            if value is not None and not isinstance(value, Instance):
                raise self._refuse("modules as children", type(value).__name__)
            module._modules[name] = (
                None if value is None else self._build_module(value, child_path, depth + 1)
            )

    def _check_shadow(self, module: torch.nn.Module, name: str, path: str) -> None:
        member = inspect.getattr_static(type(module), name, None)
        if callable(member) or inspect.isdatadescriptor(member) or name.startswith("__"):
            raise self._refuse(
                "attributes that hide no method",
                f"{name} on {type(module).__name__} at {path or 'the top'}",
                "Remove what was assigned over the method, and deliver again",
            )

    def _fill_attribute(self, module: torch.nn.Module, name: str, value: object, path: str) -> None:
        owner = f"{type(module).__name__} at {path or 'the top'}"
        if name in _HOOKS:
            if value:
                raise self._refuse(
                    "a module without hooks", f"{name} on {owner}",
                    "Remove the hooks (for weight_norm: remove_weight_norm) before tracing, and "
                    "deliver again",
                )  # fmt: skip
            return
        if name in _IGNORED:
            if name == "training" and value is True and type(module) is not torch.nn.Module:
                self.training.append(f"{path or self._file.where} ({type(module).__name__})")
            return
        self._check_shadow(module, name, path)
        kind: type = type(module)
        if isinstance(module, torch.nn.RNNBase) and name == "_flat_weights":
            return
        if name == _FUNCTION_ATTRIBUTE and isinstance(value, Global):
            function = resolve(str(value))
            if function is None:
                raise self._refuse("an activation of torch.nn.functional", str(value))
            vars(module)[name] = function
            return
        plain = self._read_plain(value, f"{name} on {owner}", 0)
        if name in known_names(kind):
            try:
                check_attribute(name, plain)
            except TextRefused as error:
                raise self._refuse(
                    error.expected, f"{error.text!r} in {name} on {owner}"
                ) from error
            vars(module)[name] = plain
        else:
            self.ignored.append(f"{path}.{name}".strip("."))

    def _read_plain(self, value: object, where: str, depth: int) -> object:
        """Return a value that holds data only."""
        self._remaining -= 1
        if self._remaining < 0 or depth > _MAX_DEPTH:
            raise self._refuse("plain values", f"too many or too deep ones in {where}")
        match value:
            case None | bool() | float() | str():
                return value
            case int() if abs(value) < 1 << 63:
                return value
            case tuple():
                return tuple(self._read_plain(item, where, depth + 1) for item in value)
            case list():
                return [self._read_plain(item, where, depth + 1) for item in value]
            case set():
                return set(value)
            case dict():
                return {k: self._read_plain(v, where, depth + 1) for k, v in value.items()}
            case Global(module="torch") if (dtype := find_dtype(value.name)) is not None:
                return dtype
            case Call(function=Global(module="torch", name="Size"), args=(tuple() as sizes,)):
                if all(type(n) is int and 0 <= n < 1 << 62 for n in sizes):
                    return torch.Size(sizes)
        label = str(value) if isinstance(value, Global) else type(value).__name__
        raise self._refuse("numbers, text and tuples as attributes", f"{label} in {where}")

    def _check_complete(self, module: torch.nn.Module, path: str) -> None:
        kind: type = type(module)
        held = {*vars(module), *module._parameters, *module._buffers, *module._modules, *dir(kind)}
        missing = sorted(required_names(kind) - held)
        if missing:
            raise self._refuse(
                f"a {type(module).__name__} of torch {torch.__version__}",
                f"one without {missing[0]} at {path or 'the top'}",
            )
        if isinstance(module, torch.nn.RNNBase):
            names = module._flat_weights_names
            is_complete = isinstance(names, list) and all(
                name in module._parameters for name in names
            )
            if not is_complete or not names:
                raise self._refuse("an RNN's weights by name", "other names")
