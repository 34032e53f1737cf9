"""Reads the Python that Inductor writes for GPUs: kernels in Triton, and the block that makes them.

That is run in the compiling process itself, so that nothing in it may be but what such a block is
made of: definitions of kernels, calls of torch's and Triton's own names, values that are counted.
Where there is a GPU the block goes on: it calls each kernel with random values, to time it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from handoff.artifacts.errors import BlessingRefused
from handoff.tasks.compile.reading.source_words import is_numbered, unknown_code_error, words

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IMPORTED = re.compile(
    r"torch|triton|math|torch\._inductor\.[a-z_.]+|torch\._dynamo\.(?:testing|utils)|triton\.[a-z_.]+"
)
# What generated code has of torch itself: its dtypes, and how a tensor or a stream is got.
_TORCH_ATTRIBUTE = re.compile(
    r"torch\.(?:(?:bfloat|float|int|uint|complex)[0-9a-z_]+|bool|device|empty_strided|as_strided"
    r"|_C\._dynamo\.guards\._?[a-z_]+|_C\._(?:cuda|xpu)_getCurrentRawStream"
    r"|cuda|cuda\._DeviceGuard)"
)
# Where a block that times kernels gets its stream, and on which device it calls them.
_STREAM = re.compile(r"from torch\._C import _(?:cuda|xpu)_getCurrentRawStream as get_raw_stream")
_ON_DEVICE = re.compile(r"torch\.cuda\._DeviceGuard\([0-9]+\)")
_TEXT = re.compile(r"[A-Za-z0-9_ .,:<>=+*/()\[\]'&|!%-]{0,400}")
_KERNEL = re.compile(r"triton_[A-Za-z0-9_]+")
# Of what is written in the sources below, this reaches beyond a kernel.
_DENIED = words(
    """
    os sys subprocess builtins importlib import_module pickle marshal ctypes socket shutil
    pathlib Path io tempfile signal threading multiprocessing inspect codecs runpy code exec
    eval compile open input breakpoint exit quit getattr setattr delattr vars locals dir
    type object super __import__ __builtins__ __class__ __dict__ __globals__ __code__
    __subclasses__ __bases__ __mro__ __getattribute__ __loader__ __spec__ system popen spawn
    fork environ getenv putenv remove unlink rename rmtree mkdir makedirs hub load_library
    load_state_dict save check_output check_call Popen run_path cpp_extension write_text
    write_bytes
    """
)
_REFUSED = (
    ast.ClassDef, ast.Global, ast.Nonlocal, ast.Try, ast.Raise, ast.With, ast.Lambda, ast.Yield,
    ast.YieldFrom, ast.Await, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.NamedExpr,
    ast.JoinedStr, ast.Match,
)  # fmt: skip
_ROOT = Path(torch.__file__).parent / "_inductor"
_SOURCES = ("runtime", "codegen/triton.py", "codegen/simd.py", "codegen/wrapper.py", "kernel")


def read_python(code: str) -> None:
    """Raise `BlessingRefused` unless `code` is Python such as Inductor writes for a GPU."""
    for character in sorted(
        {c for c in code if not (c.isascii() and (c.isprintable() or c == "\n"))}
    ):
        raise unknown_code_error("printable ASCII", character)
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise unknown_code_error("Python syntax", str(error)) from error
    sources = {id(node) for node in _kernel_sources(tree)}
    # A text that stands alone, as what a kernel says of itself, does nothing.
    standalone = {
        id(node.value) for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }  # fmt: skip
    assigned = {name for node in ast.walk(tree) for name in _assigned_names(node)}
    for node in ast.walk(tree):
        if id(node) in sources:
            assert isinstance(node, ast.Constant)
            read_python(str(node.value))
        elif id(node) not in standalone:
            _check_node(node, assigned)


def _assigned_names(node: ast.AST) -> list[str]:
    """Return the names that the node gives to something of the code's own."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name) | ast.arg(arg=name):
            return [name]
    return []


def _kernel_sources(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the literals that hold a kernel's source, as the second argument of its definition."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="async_compile"), attr="triton"),
                args=[_, ast.Constant(value=str()) as source],
            ):
                yield source


def _check_node(node: ast.AST, assigned: Collection[str]) -> None:
    if isinstance(node, _REFUSED) and not _is_on_device(node):
        raise _refusal("statements that kernels are made of", node)
    if isinstance(node, ast.Import | ast.ImportFrom) and not _STREAM.fullmatch(ast.unparse(node)):
        for name in [node.module] if isinstance(node, ast.ImportFrom) else node.names:
            module = name.name if isinstance(name, ast.alias) else str(name)
            if not _IMPORTED.fullmatch(module):
                raise _refusal("imports of torch's inductor and Triton", node)
    text = node.value if isinstance(node, ast.Constant) else None
    if isinstance(text, bytes) or (isinstance(text, str) and not _TEXT.fullmatch(text)):
        raise _refusal("texts that are names, sizes or messages of torch's", node)
    allowed = assigned if isinstance(node, ast.Name | ast.FunctionDef | ast.arg) else ()
    for word in _names_in(node):
        # What the code makes itself reaches nothing else, whatever it is called.
        if not is_known(word) and not (word in allowed and word not in _DENIED):
            raise unknown_code_error("words of torch's and Triton's own", word)
    if isinstance(node, ast.Attribute):
        dotted = ast.unparse(node)
        # Of a longer chain each part is visited as well.
        is_allowed = _TORCH_ATTRIBUTE.fullmatch(dotted) or re.fullmatch(
            r"torch\._C(?:\._dynamo(?:\.guards)?)?", dotted
        )
        if dotted.startswith("torch.") and not is_allowed:
            raise _refusal("of torch itself its dtypes, tensors and streams", node)


def _is_on_device(node: ast.AST) -> bool:
    """Return whether the statement does no more than to choose the device for what it holds."""
    return isinstance(node, ast.With) and all(
        item.optional_vars is None and _ON_DEVICE.fullmatch(ast.unparse(item.context_expr))
        for item in node.items
    )


def _names_in(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name):
            return [name]
        case ast.arg(arg=name):
            return [name]
        case ast.alias(name=name, asname=other):
            return [*name.split("."), *([other] if other else [])]
    return []


def is_known(word: str) -> bool:
    """Return whether Python that Inductor wrote may hold this word."""
    if word in _DENIED:
        return False
    return is_numbered(word) or _KERNEL.fullmatch(word) is not None or word in _source_words()


@cache
def _source_words() -> frozenset[str]:
    """Return the words of what writes kernels, and of the language that they are written in."""
    places = [_ROOT / place for place in _SOURCES]
    triton = find_spec("triton")
    if triton is not None and triton.origin is not None:
        places.append(Path(triton.origin).parent / "language")
    found: set[str] = set()
    for place in places:
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.suffix in (".py", ".jinja"):
                found.update(_WORD.findall(path.read_text(encoding="utf-8", errors="replace")))
    return frozenset(found) - _DENIED


def _refusal(expected: str, node: ast.AST) -> BlessingRefused:
    return unknown_code_error(expected, ast.unparse(node))
