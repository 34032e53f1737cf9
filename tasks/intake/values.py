"""Reads the values that fx writes into calls: names, literals, dtypes, slices, nested tuples."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection

import torch

from handoff.tasks.intake.errors import refuse
from handoff.tasks.intake.functions import NAME
from handoff.tasks.intake.module_source import Ref

MODULE = "module.py"
_CONSTANTS = {
    "inf": math.inf, "nan": math.nan, "Ellipsis": Ellipsis, "NoneType": type(None)
}  # fmt: skip
_DEVICE = re.compile(r"(cpu|cuda|meta|mps|xpu|hpu|mtia|xla)")
_TORCH_CONSTANTS = (torch.dtype, torch.memory_format, torch.layout)
_INTEGER_LIMIT = 1 << 63


def refuse_line(node: ast.AST, expected: str, got: object = None, remedy: str = "") -> Exception:
    """Return the error for a line that fx would not have written."""
    line = getattr(node, "lineno", 0)
    shown = ast.unparse(node) if got is None else got
    what = f"{MODULE} holds a line that torch.fx doesn't write"
    where = f"{MODULE}:{line}"
    if remedy:
        return refuse(what, expected=expected, got=shown, where=where, remedy=remedy)
    return refuse(what, expected=expected, got=shown, where=where)


def dotted_name(node: ast.expr) -> str | None:
    """Return `a.b.c` for that chain of attributes, or None for anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    parts.append(node.id)
    return ".".join(reversed(parts))


def is_name(node: ast.AST, name: str) -> bool:
    """Return whether `node` is that bare name."""
    return isinstance(node, ast.Name) and node.id == name


def read_value(node: ast.expr, alive: Collection[str]) -> object:
    """Return the value that `node` writes; names in `alive` become a `Ref`.

    Raises `DeliveryUnreadable` for what fx doesn't write as a value.
    """
    if isinstance(node, ast.Constant):
        return _read_constant(node)
    if isinstance(node, ast.Name):
        if node.id in alive:
            return Ref(node.id)
        if node.id in _CONSTANTS:
            return _CONSTANTS[node.id]
        raise refuse_line(node, "a value that was computed on a line before")
    if isinstance(node, ast.Tuple):
        return tuple(read_value(item, alive) for item in node.elts)
    if isinstance(node, ast.List):
        return [read_value(item, alive) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {_read_key(k, node): read_value(v, alive)
                for k, v in zip(node.keys, node.values, strict=True)}  # fmt: skip
    if isinstance(node, ast.UnaryOp):
        return _read_signed(node)
    if isinstance(node, ast.BinOp):
        return _read_complex(node)
    if isinstance(node, ast.Attribute):
        return _read_torch_constant(node)
    if isinstance(node, ast.Call):
        return _read_call(node, alive)
    raise refuse_line(node, "a name, a literal or a torch constant")


def _read_constant(node: ast.Constant) -> object:
    value = node.value
    if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
        raise refuse_line(node, "integers of 64 bits", "a longer one")
    if isinstance(value, bytes):
        raise refuse_line(node, "text or numbers")
    return value


def _read_key(node: ast.expr | None, parent: ast.Dict) -> object:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, (str, int, float)):
        raise refuse_line(node or parent, "text or a number as a dictionary's key")
    return node.value


def _read_signed(node: ast.UnaryOp) -> object:
    value = read_value(node.operand, ())
    is_number = isinstance(value, (int, float, complex)) and not isinstance(value, bool)
    if not isinstance(node.op, ast.USub) or not is_number:
        raise refuse_line(node, "a number")
    assert isinstance(value, (int, float, complex))
    return -value


def _read_complex(node: ast.BinOp) -> complex:
    """Return the complex number that its repr `(1+2j)` writes as a sum."""
    left = read_value(node.left, ()) if not isinstance(node.left, ast.BinOp) else None
    right = read_value(node.right, ()) if not isinstance(node.right, ast.BinOp) else None
    if isinstance(left, (int, float)) and isinstance(right, complex):
        if isinstance(node.op, ast.Add):
            return complex(left + right)
        if isinstance(node.op, ast.Sub):
            return complex(left - right)
    raise refuse_line(node, "a value, computed on a line of its own")


def _read_torch_constant(node: ast.Attribute) -> object:
    name = dotted_name(node)
    if name is not None and name.startswith("torch.") and name.count(".") == 1:
        found = vars(torch).get(name[6:])
        if isinstance(found, _TORCH_CONSTANTS):
            return found
    if name is not None and name.split(".")[0] == "self":
        raise refuse_line(node, "a value, read from the module on a line of its own")
    raise refuse_line(node, "a dtype, layout or memory format of torch")


def _read_call(node: ast.Call, alive: Collection[str]) -> object:
    """Return a slice, a range, a device or a complex number, which fx writes as calls."""
    args = [read_value(arg, alive) for arg in node.args]
    if is_name(node.func, "slice") and len(args) == 3 and not node.keywords:
        return slice(*args)
    if is_name(node.func, "range") and args and not node.keywords:
        numbers = [arg for arg in args if type(arg) is int]
        if len(numbers) == len(args) <= 3 and numbers[2:] != [0]:
            return range(*numbers)
    if is_name(node.func, "complex") and len(args) == 2 and not node.keywords:
        real, imaginary = args
        if isinstance(real, (int, float)) and isinstance(imaginary, (int, float)):
            return complex(real, imaginary)
    if is_name(node.func, "device") and not args:
        return _read_device(node)
    raise refuse_line(node, "a value, computed on a line of its own")


def _read_device(node: ast.Call) -> torch.device:
    values = {k.arg: read_value(k.value, ()) for k in node.keywords}
    match values:
        case {"type": str(kind), **rest} if _DEVICE.fullmatch(kind):
            index = rest.pop("index", 0)
            if not rest and type(index) is int and 0 <= index < 128:
                return torch.device(kind, index) if "index" in values else torch.device(kind)
    raise refuse_line(node, "a device such as device(type='cpu')")


def read_keywords(node: ast.Call, alive: Collection[str]) -> dict[str, object]:
    """Return the keyword arguments of a call."""
    keywords: dict[str, object] = {}
    for keyword in node.keywords:
        if keyword.arg is None or not NAME.fullmatch(keyword.arg) or keyword.arg in keywords:
            raise refuse_line(node, "keyword arguments by name")
        keywords[keyword.arg] = read_value(keyword.value, alive)
    return keywords
