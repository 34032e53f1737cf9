"""Reads `module.py` as text: its syntax tree is compared with what `to_folder` writes, never run.

The grammar is that of `torch.fx.GraphModule.to_folder` and `torch.fx.graph.CodeGen` in torch 2.11
to 2.15. Anything else is refused with its line.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from pathlib import Path

from handoff.tasks.intake.errors import refuse
from handoff.tasks.intake.files.tensors import find_dtype
from handoff.tasks.intake.forward import ForwardReader
from handoff.tasks.intake.functions import NAME, resolve
from handoff.tasks.intake.module_source import ChildSource, LayerSource, ModuleSource, TensorSource
from handoff.tasks.intake.values import MODULE, dotted_name, read_value, refuse_line

INIT_TEXT = "from .module import *"
REPR_LAYERS = frozenset(
    {"Linear", "Conv1d", "Conv2d", "Conv3d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d"}
)
_IMPORTS = {
    "import torch", "from math import inf", "from math import nan", "NoneType = type(None)",
    "from torch import device", "import torch.fx._pytree as fx_pytree",
    "import torch.utils._pytree as pytree", "from torch.nn import *",
}  # fmt: skip
_UNQUOTED_WORDS = {
    "same", "valid", "zeros", "circular", "reflect", "replicate"
}  # fmt: skip
_MAX_BYTES = 8 << 20
_MAX_NESTING = 60
_MAX_CHAIN = 60
_MAX_ELEMENTS = 1 << 58
# Possessive, and satisfied by a line's end, so that it takes linear time on any text.
_QUOTED_TEXT = re.compile(r"""'(?:[^'\\]++|\\.)*+(?:'|\\?$)|"(?:[^"\\]++|\\.)*+(?:"|\\?$)|#.*""")
_CHAIN = re.compile(rf"(?:\s*\.\s*\w+){{{_MAX_CHAIN},}}|(?:[-~+]\s*|\bnot\s+){{{_MAX_CHAIN},}}")
_FORBIDDEN = re.compile(r"'''|\"\"\"|\\\n")
_CHILD_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")


def read_source(path: Path, namespaces: frozenset[str]) -> ModuleSource:
    """Return what the `module.py` at `path` says; raise `DeliveryUnreadable` with its line."""
    return parse_source(path.read_bytes(), namespaces)


def parse_source(data: bytes, namespaces: frozenset[str]) -> ModuleSource:
    """Return what the text of a `module.py` says; raise `DeliveryUnreadable` with its line."""
    try:
        return _read_module(_parse(data), namespaces)
    except RecursionError as error:
        raise _refuse_text("lines that are not nested deeply", "a deeply nested one") from error


def _read_module(tree: ast.Module, namespaces: frozenset[str]) -> ModuleSource:
    for statement in tree.body[:-1]:
        if ast.unparse(statement) not in _IMPORTS:
            raise refuse_line(statement, "one of the imports that torch.fx writes")
    class_def = tree.body[-1] if tree.body else tree
    if not isinstance(class_def, ast.ClassDef):
        raise refuse_line(class_def, "one class at the end of the file", "none")
    bases = [dotted_name(base) for base in class_def.bases]
    if bases != ["torch.nn.Module"] or class_def.keywords or class_def.decorator_list:
        raise refuse_line(
            class_def, "a plain subclass of torch.nn.Module", f"class {class_def.name}"
        )
    if not NAME.fullmatch(class_def.name):
        raise refuse_line(class_def, "a class with a plain name", class_def.name)
    functions = [node for node in class_def.body if isinstance(node, ast.FunctionDef)]
    methods = [function.name for function in functions]
    if methods != ["__init__", "forward"]:
        raise refuse_line(class_def, "the methods __init__ and forward", " and ".join(methods))
    for function in functions:
        if function.decorator_list:
            raise refuse_line(function, "no decorator", f"one on {function.name}")
    if class_def.body[0] is not functions[0] or class_def.body[-1] is not functions[1]:
        raise refuse_line(class_def, "__init__ first and forward last", "another order")
    wrapped = tuple(_read_wrap(node, namespaces) for node in class_def.body[1:-1])
    children, tensors, folder = _read_init(functions[0])
    steps = ForwardReader(functions[1], namespaces).read()
    return ModuleSource(class_def.name, children, tensors, steps, wrapped, folder)


def _parse(data: bytes) -> ast.Module:
    """Return the syntax tree, once size and nesting are known to be small."""
    if len(data) > _MAX_BYTES:
        raise _refuse_text(f"at most {_MAX_BYTES} bytes", f"{len(data)} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refuse_text("UTF-8 text", str(error)) from error
    if _FORBIDDEN.search(text) or "\x00" in text:
        raise _refuse_text("one statement for each line", "a string or a line that goes on")
    for number, line in enumerate(text.split("\n"), start=1):
        unquoted = _QUOTED_TEXT.sub("", line)
        depth = sum(map(unquoted.count, "([{"))
        if depth != sum(map(unquoted.count, ")]}")):
            raise _refuse_text("one statement for each line", "a line that goes on", number)
        if (depth > _MAX_NESTING and _nesting_depth(unquoted) > _MAX_NESTING) or _CHAIN.search(
            unquoted
        ):
            raise _refuse_text("lines that are not nested deeply", "a deeply nested one", number)
        if unquoted.count("else") + unquoted.count("lambda") + unquoted.count("**") > _MAX_CHAIN:
            raise _refuse_text("lines that are not nested deeply", "a deeply nested one", number)
    try:
        # What Python warns of in a text of theirs is for nobody here to fix.
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            return ast.parse(text, MODULE)
    except SyntaxError as error:
        raise _refuse_text("Python syntax", error.msg, error.lineno or 0) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise _refuse_text("Python syntax", f"{type(error).__name__}: {error}") from error


def _nesting_depth(line: str) -> int:
    depth = deepest = 0
    for character in line:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    return deepest


def _refuse_text(expected: str, got: str, line: int = 0) -> Exception:
    where = f"{MODULE}:{line}" if line else MODULE
    return refuse(f"{MODULE} is not what torch.fx writes", expected=expected, got=got, where=where)


def _read_wrap(node: ast.stmt, namespaces: frozenset[str]) -> str:
    """Check a `wrap("name")` line: the function has to be one that a graph may call."""
    match node:
        case ast.Expr(
            value=ast.Call(func=function, args=[ast.Constant(value=str(name))], keywords=[])
        ) if dotted_name(function) in ("torch.fx._symbolic_trace.wrap", "wrap"):
            if resolve(name, namespaces) is None:
                raise refuse_line(
                    node, "functions of torch or Python's operators", f"wrap({name!r})",
                    f"Deliver the model with 'handoff deliver', which traces into {name}; or, if "
                    "it is an operator of your own, name its extension in the recipe",
                )  # fmt: skip
            return name
    raise refuse_line(node, "nothing between __init__ and forward")


class _LoadPaths:
    """The `.pt` paths that `__init__` names: only their last component is ever used."""

    def __init__(self) -> None:
        self.folder: str | None = None

    def is_load(self, node: ast.expr, name: str) -> bool:
        """Return whether `node` is `torch.load(r'FOLDER/name.pt')` for the folder seen before."""
        match node:
            case ast.Call(func=function, args=[ast.Constant(value=str(path))], keywords=keywords):
                pass
            case _:
                return False
        options = {k.arg: getattr(k.value, "value", None) for k in keywords}
        if dotted_name(function) != "torch.load" or options not in ({}, {"weights_only": False}):
            return False
        folder, _, last = path.replace("\\", "/").rpartition("/")
        if last != f"{name}.pt" or self.folder not in (None, folder):
            raise refuse_line(node, f"{name}.pt in the folder of the other files", path)
        self.folder = folder
        return True


def _read_init(
    function: ast.FunctionDef,
) -> tuple[tuple[ChildSource, ...], tuple[TensorSource, ...], str]:
    arguments = ast.unparse(function.args)
    first = ast.unparse(function.body[0])
    if arguments != "self" or function.returns:
        raise refuse_line(function, "def __init__(self)", arguments)
    if first != "super().__init__()":
        raise refuse_line(function.body[0], "super().__init__() as the first statement")
    children: list[ChildSource] = []
    tensors: list[TensorSource] = []
    paths = _LoadPaths()
    for node in function.body[1:-1]:
        match node:
            case ast.Expr(value=ast.Call(func=callee, args=args, keywords=[])):
                pass
            case _:
                raise refuse_line(node, "a child, a buffer or a parameter")
        match dotted_name(callee), args:
            case "setattr", [ast.Name(id="self"), ast.Constant(value=str(name)), value]:
                child = _read_child(name, value, node, paths)
                if isinstance(child, ChildSource):
                    children.append(child)
                else:
                    tensors.append(child)
            case "self.register_buffer", [ast.Constant(value=str(name)), value]:
                tensors.append(_read_tensor(name, value, node, is_parameter=False))
            case _:
                raise refuse_line(node, "a child, a buffer or a parameter")
    match function.body[-1]:
        case ast.Expr(value=ast.Call(func=callee, args=[value], keywords=[])) if dotted_name(
            callee
        ) == "self.load_state_dict" and paths.is_load(value, "state_dict"):
            pass
        case last:
            raise refuse_line(last, "self.load_state_dict(torch.load(r'.../state_dict.pt'))")
    names = [child.name for child in children] + [tensor.name for tensor in tensors]
    bad_names = [name for name in names if not _CHILD_NAME.fullmatch(name)]
    if bad_names or len(set(names)) != len(names):
        raise refuse_line(
            function, "children, buffers and parameters of different names", (bad_names or names)[0]
        )
    return tuple(children), tuple(tensors), paths.folder or ""


def _read_child(
    name: str, value: ast.expr, node: ast.stmt, paths: _LoadPaths
) -> ChildSource | TensorSource:
    if paths.is_load(value, name):
        return ChildSource(name, None, node.lineno)
    if not isinstance(value, ast.Call):
        raise refuse_line(node, "a child, a buffer or a parameter")
    callee = dotted_name(value.func)
    if callee == "torch.nn.Parameter" and len(value.args) == 1 and not value.keywords:
        return _read_tensor(name, value.args[0], node, is_parameter=True)
    if callee not in REPR_LAYERS:
        raise refuse_line(node, f"one of {', '.join(sorted(REPR_LAYERS))} or torch.load", callee)
    args = tuple(_read_literal(arg) for arg in value.args)
    kwargs = {k.arg: _read_literal(k.value) for k in value.keywords if k.arg is not None}
    if len(kwargs) != len(value.keywords):
        raise refuse_line(node, "keyword arguments by name")
    return ChildSource(name, LayerSource(callee, args, kwargs), node.lineno)


def _read_literal(node: ast.expr) -> object:
    """Return a literal of a layer's repr, which leaves `same` and `circular` without quotes."""
    if isinstance(node, ast.Name) and node.id in _UNQUOTED_WORDS:
        return node.id
    value = read_value(node, ())
    items = value if isinstance(value, tuple) else (value,)
    if len(items) > 3 or not all(i is None or isinstance(i, (bool, int, float)) for i in items):
        raise refuse_line(node, "a number, a tuple of numbers, True, False or None")
    return value


def _read_tensor(
    name: str, node: ast.expr, statement: ast.stmt, *, is_parameter: bool
) -> TensorSource:
    match node:
        case ast.Call(
            func=function, args=[ast.List() as sizes], keywords=[ast.keyword("dtype", dtype)]
        ) if dotted_name(function) == "torch.empty":
            shape = read_value(sizes, ())
            dtype_name = (dotted_name(dtype) or "").removeprefix("torch.")
            assert isinstance(shape, list)
            is_shape = all(type(n) is int and n >= 0 for n in shape)
            # torch counts a tensor's bytes in 64 bits.
            if is_shape and math.prod(shape) < _MAX_ELEMENTS and find_dtype(dtype_name) is not None:
                line = statement.lineno
                return TensorSource(name, tuple(shape), dtype_name, is_parameter, line)
    raise refuse_line(statement, "torch.empty([sizes], dtype=torch.DTYPE)")
