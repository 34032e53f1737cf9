"""Takes the Python program apart that Inductor wrote: kernels, and the calls around them.

Of the program only its kernels and the function `call` are kept: what stands around them imports
and names, and is replaced by names of ours. In `call` the choice of a device and of a stream is
left out, and operators are called by their place in a list of those that the graph has. What is
left is read as any generated Python is (`tasks.compile.reading`) before any of it is carried out.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from handoff.tasks.compile.reading.python_source import read_python

# What a call of a kernel, and a check after another call, become: functions of the run's own.
LAUNCH, WROTE = "_launch", "_wrote"
_OUTPUT = "out"


class NotCheckableError(Exception):
    """The program has something that isn't carried out here; the message says what."""


@dataclass(frozen=True)
class ProgramParts:
    """The kernels' sources by name, the code of `call`, and the operators that it calls, in order.

    `call` launches a kernel as `_launch(kernel, names of the arguments, *arguments)`, and reports
    each buffer that something else has filled, as `_wrote(its name, buffer, what filled it)`.
    """

    kernels: Mapping[str, str]
    call: ast.Module
    operators: tuple[str, ...]


def split_program(text: str, operators: Collection[str]) -> ProgramParts:
    """Return the parts of the program `text`, which may call `operators` (`aten::mm`) by name.

    Raises `BlessingRefused` where a part isn't such as Inductor writes, and `NotCheckableError` for
    what can't be carried out.
    """
    tree = ast.parse(text)
    kernels = dict(filter(None, map(_parse_kernel, tree.body)))
    calls = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if [node.name for node in calls] != ["call"]:
        raise NotCheckableError("the program has branches or loops of its own")
    stripper = _DeviceStripper(operators)
    (call,) = calls
    call = stripper.visit(call)
    read_python(ast.unparse(ast.fix_missing_locations(call)))
    for source in kernels.values():
        read_python(source)
    instrumented = _CallInstrumenter(kernels).visit(call)
    module = ast.fix_missing_locations(ast.Module(body=[instrumented], type_ignores=[]))
    return ProgramParts(kernels, module, tuple(stripper.called))


def _parse_kernel(node: ast.stmt) -> tuple[str, str] | None:
    match node:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Call(
                func=ast.Attribute(value=ast.Name(id="async_compile"), attr=language),
                args=[ast.Constant(value=str(kernel_name)), ast.Constant(value=str(source)), *_],
            ),
        ):
            if language != "triton" or kernel_name != name:
                raise NotCheckableError(f"a kernel that isn't Triton's: {language}")
            return name, source
    return None


class _DeviceStripper(ast.NodeTransformer):
    """Leaves out what chooses devices and streams, and has operators called by their place."""

    def __init__(self, operators: Collection[str]) -> None:
        self._operators = operators
        self.called: list[str] = []

    def visit_With(self, node: ast.With) -> list[ast.stmt] | ast.With:
        if ast.unparse(node.items[0].context_expr) == "torch.cuda._DeviceGuard(0)":
            statements: list[ast.stmt] = []
            for statement in node.body:
                visited = self.visit(statement)
                statements += visited if isinstance(visited, list) else [visited] if visited else []
            return statements
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        if ast.unparse(node) == "torch.cuda.set_device(0)":
            return None
        self.generic_visit(node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign | None:
        match node.value:
            case ast.Call(func=ast.Name(id="get_raw_stream")):
                return None
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != "stream"]
        self.generic_visit(node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        path = ast.unparse(node).split(".")
        if path[:2] == ["torch", "ops"] and len(path) >= 4:
            name = f"{path[2]}::{path[3]}"
            if name not in self._operators:
                raise NotCheckableError(f"the program calls {name}, which the graph doesn't")
            overload = path[4] if len(path) > 4 else "default"
            self.called.append(f"{name}.{overload}")
            index = ast.Constant(value=len(self.called) - 1)
            return ast.Subscript(value=ast.Name(id="aten", ctx=ast.Load()), slice=index,
                                 ctx=ast.Load())  # fmt: skip
        self.generic_visit(node)
        return node


class _CallInstrumenter(ast.NodeTransformer):
    """Has every launch, and every buffer that something else fills, reported to the run."""

    def __init__(self, kernels: Collection[str]) -> None:
        self._kernels = kernels

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | list[ast.stmt]:
        call = node.value
        if not isinstance(call, ast.Call):
            return node
        match call.func:
            case ast.Attribute(value=ast.Name(id=name), attr="run") if name in self._kernels:
                names = ast.Tuple(
                    elts=[ast.Constant(value=_buffer_name(argument)) for argument in call.args],
                    ctx=ast.Load(),
                )
                call.args = [ast.Constant(value=name), names, *call.args]
                call.func = ast.Name(id=LAUNCH, ctx=ast.Load())
                return node
        outputs = [keyword.value for keyword in call.keywords if keyword.arg == _OUTPUT]
        return [
            node,
            *(_report_write(argument, call) for argument in outputs if _buffer_name(argument)),
        ]

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if (
                name.startswith("buf") and isinstance(call.func, ast.Subscript)
            ):
                return [node, _report_write(ast.Name(id=name, ctx=ast.Load()), call)]
        return node


def _buffer_name(node: ast.expr) -> str:
    """Return the name of the buffer that an argument is, or a view of; '' for none."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Call(func=ast.Name(id="reinterpret_tensor"), args=[ast.Name(id=name), *_]):
            return name
    return ""


def _report_write(buffer: ast.expr, call: ast.Call) -> ast.Expr:
    arguments: list[ast.expr] = [
        ast.Constant(value=_buffer_name(buffer)),
        buffer,
        ast.Constant(value=ast.unparse(call.func)),
    ]
    return ast.Expr(ast.Call(func=ast.Name(id=WROTE, ctx=ast.Load()), args=arguments, keywords=[]))
