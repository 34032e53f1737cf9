"""Reads the body of `forward`, statement by statement, as the steps of a graph."""

from __future__ import annotations

import ast
import operator
import re

from handoff.tasks.intake.errors import refuse
from handoff.tasks.intake.functions import ATTRIBUTES, NAME, Function, methods, resolve
from handoff.tasks.intake.module_source import Ref, StepSource
from handoff.tasks.intake.string_arguments import TextRefused, check_texts
from handoff.tasks.intake.values import (
    MODULE,
    dotted_name,
    is_name,
    read_keywords,
    read_value,
    refuse_line,
)

_BINARY: dict[type[ast.operator], Function] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.MatMult: operator.matmul,
}  # fmt: skip
_IN_PLACE: dict[type[ast.operator], Function] = {
    ast.Add: operator.iadd, ast.Sub: operator.isub, ast.Mult: operator.imul,
    ast.Div: operator.itruediv, ast.FloorDiv: operator.ifloordiv, ast.Mod: operator.imod,
    ast.Pow: operator.ipow, ast.LShift: operator.ilshift, ast.RShift: operator.irshift,
    ast.BitAnd: operator.iand, ast.BitOr: operator.ior, ast.BitXor: operator.ixor,
    ast.MatMult: operator.imatmul,
}  # fmt: skip
_UNARY: dict[type[ast.unaryop], Function] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Function] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_ANNOTATION = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.Constant, ast.Load, ast.BinOp,
    ast.BitOr,
)  # fmt: skip
_PATH_PART = re.compile(r"[A-Za-z0-9_-]{1,200}")
_TEXT_REMEDY = (
    "What a graph says may become source code, so that only texts which torch itself knows are "
    "read: take this one out of the model, and deliver again"
)
_PYTREE = {"_in_spec", "_out_spec", "fx_pytree", "pytree"}

CallParts = tuple[str, object, tuple[object, ...], dict[str, object]]


def check_annotation(node: ast.expr | None) -> None:
    """Raise `DeliveryUnreadable` unless an annotation only names types; nobody evaluates it."""
    for part in ast.walk(node) if node is not None else ():
        if not isinstance(part, _ANNOTATION):
            raise refuse_line(node or part, "an annotation that only names types")


class ForwardReader:
    """Turns one `forward` into steps, keeping track of which values are still alive."""

    def __init__(self, function: ast.FunctionDef, namespaces: frozenset[str]) -> None:
        """Take the function whose body is to be read."""
        self._function = function
        self._namespaces = namespaces
        self._alive: set[str] = set()
        self._used_names: set[str] = set()
        self._steps: list[StepSource] = []

    def read(self) -> tuple[StepSource, ...]:
        """Return the steps; raise `DeliveryUnreadable` naming the line that is not fx's."""
        self._refuse_pytree()
        self._read_signature()
        body = self._function.body
        at = self._read_renames(body)
        while at < len(body) - 1:
            at = self._read_statement(body, at)
        last = body[-1]
        if at != len(body) - 1 or not isinstance(last, ast.Return):
            raise refuse_line(last, "a return as the last statement")
        value = None if last.value is None else read_value(last.value, self._alive)
        self._add_step("output", ("output", "output", (value,), {}), last)
        return tuple(self._steps)

    def _refuse_pytree(self) -> None:
        for node in ast.walk(self._function):
            name = getattr(node, "attr", None) or getattr(node, "id", None)
            if name in _PYTREE:
                raise refuse_line(
                    node,
                    "a forward that takes and gives its tensors one by one",
                    f"{name}: the structure of nested inputs or outputs, which to_folder loses",
                    "Trace the model without concrete_args, or deliver it with 'handoff deliver'",
                )

    def _read_signature(self) -> None:
        arguments = self._function.args
        check_annotation(self._function.returns)
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
            raise refuse_line(
                self._function, "inputs that each have a name", "*args, **kwargs or keyword-only",
                "Give each input of forward a name, and deliver again",
            )  # fmt: skip
        if not arguments.args or arguments.args[0].arg != "self":
            raise refuse_line(self._function, "forward(self, ...)")
        inputs = arguments.args[1:]
        required = len(inputs) - len(arguments.defaults)
        for index, argument in enumerate(inputs):
            check_annotation(argument.annotation)
            default = (
                () if index < required else (read_value(arguments.defaults[index - required], ()),)
            )
            self._add_step(argument.arg, ("placeholder", argument.arg, default, {}), argument)

    def _read_renames(self, body: list[ast.stmt]) -> int:
        """Rename inputs where fx had to (`input_1 = input`); return how many statements that is."""
        inputs = {str(step.target): index for index, step in enumerate(self._steps)}
        for at, statement in enumerate(body):
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=old_name)):
                    pass
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Name(id=old_name)):
                    pass
                case _:
                    return at
            if old_name not in inputs or old_name not in self._alive:
                return at
            step = self._steps[inputs[old_name]]
            self._alive.discard(old_name)
            self._claim(name, statement)
            self._steps[inputs[old_name]] = StepSource(
                step.op, name, step.target, step.args, {}, step.line
            )
        return len(body)

    def _claim(self, name: str, node: ast.AST) -> None:
        if not NAME.fullmatch(name) or name in self._used_names or name in ("self", "torch"):
            raise refuse_line(node, "a new name for each value")
        self._used_names.add(name)
        self._alive.add(name)

    def _add_step(self, name: str, call: CallParts, node: ast.AST) -> None:
        op, target, args, kwargs = call
        try:
            check_texts(op, target, args, kwargs)
        except TextRefused as error:
            raise refuse(
                f"{MODULE} holds a text that torch doesn't know there",
                expected=error.expected,
                got=repr(error.text),
                where=f"{MODULE}:{getattr(node, 'lineno', 0)}",
                remedy=_TEXT_REMEDY,
            ) from error
        if op != "output":
            self._claim(name, node)
        line: int = getattr(node, "lineno", 0)
        self._steps.append(StepSource(op, name, target, args, kwargs, line))

    def _read_statement(self, body: list[ast.stmt], at: int) -> int:
        """Read the statement at `at`, and the next where both are one; return what follows."""
        statement = body[at]
        if isinstance(statement, ast.AugAssign):
            value = read_value(statement.value, self._alive)
            return self._read_pair(body, at, _IN_PLACE[type(statement.op)], statement.target, value)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            check_annotation(statement.annotation)
            target, expression = statement.target, statement.value
        elif isinstance(statement, ast.Assign):
            if self._read_lifetimes(statement):
                return at + 1
            if len(statement.targets) != 1:
                raise refuse_line(statement, "one value for each line")
            first = statement.targets[0]
            if isinstance(first, ast.Subscript):
                index = read_value(first.slice, self._alive)
                value = read_value(statement.value, self._alive)
                return self._read_pair(body, at, operator.setitem, first.value, index, value)
            if not isinstance(first, ast.Name):
                raise refuse_line(statement, "a name on the left")
            target, expression = first, statement.value
        else:
            raise refuse_line(statement, "an assignment")
        if expression is None:
            raise refuse_line(statement, "a value on the right")
        self._add_step(target.id, self._read_expression(expression), statement)
        return at + 1

    def _read_lifetimes(self, statement: ast.Assign) -> bool:
        """End the lifetimes that `a = b = None` ends; return whether it was such a statement."""
        if not isinstance(statement.value, ast.Constant) or statement.value.value is not None:
            return False
        for target in statement.targets:
            if not isinstance(target, ast.Name) or target.id not in self._alive:
                raise refuse_line(statement, "the end of a value that is still in use")
            self._alive.discard(target.id)
        return True

    def _read_pair(
        self, body: list[ast.stmt], at: int, function: Function, changed: ast.expr, *rest: object
    ) -> int:
        """Read `x += y;  iadd = x`, which is one node."""
        value = read_value(changed, self._alive)
        if at + 1 < len(body) and isinstance(value, Ref):
            next_statement = body[at + 1]
            match next_statement:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=same))
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.Name(id=same))
                ) if same == value.name:
                    check_annotation(getattr(next_statement, "annotation", None))
                    self._add_step(
                        name, ("call_function", function, (value, *rest), {}), next_statement
                    )
                    return at + 2
        raise refuse_line(body[at], "a change in place, and its result on the same line")

    def _read_expression(self, node: ast.expr) -> CallParts:
        if isinstance(node, ast.Call):
            return self._read_call(node)
        path = self._read_path(node)
        if path is not None:
            return "get_attr", path, (), {}
        if isinstance(node, ast.Attribute):
            return self._read_attribute(node, node.value, node.attr)
        if isinstance(node, ast.Subscript):
            if isinstance(node.slice, ast.Slice):
                raise refuse_line(node, "a slice as fx writes it, slice(a, b, c)")
            return self._read_operator(operator.getitem, node, node.value, node.slice)
        if isinstance(node, ast.BinOp):
            return self._read_operator(_BINARY[type(node.op)], node, node.left, node.right)
        if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
            return self._read_operator(_UNARY[type(node.op)], node, node.operand)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
            return self._read_operator(
                _COMPARE[type(node.ops[0])], node, node.left, node.comparators[0]
            )
        raise refuse_line(node, "a call, an operator or an attribute")

    def _read_operator(self, function: Function, node: ast.expr, *operands: ast.expr) -> CallParts:
        args = tuple(read_value(operand, self._alive) for operand in operands)
        return "call_function", function, args, {}

    def _read_path(self, node: ast.expr) -> str | None:
        """Return the path below self that `self.a.b` or `getattr(self.a, "0")` writes."""
        parts: list[str] = []
        current = node
        while not is_name(current, "self"):
            match current:
                case ast.Attribute(value=value, attr=part):
                    pass
                case ast.Call(
                    func=ast.Name(id="getattr"), args=[value, ast.Constant(value=str(part))],
                    keywords=[],
                ):  # fmt: skip
                    pass
                case _:
                    return None
            parts.append(part)
            current = value
        if "self" in self._alive or not parts:
            return None
        if not all(_PATH_PART.fullmatch(part) and not part.startswith("__") for part in parts):
            raise refuse_line(node, "a path of plain names below self")
        return ".".join(reversed(parts))

    def _read_attribute(self, node: ast.expr, value: ast.expr, name: object) -> CallParts:
        owner = read_value(value, self._alive)
        if not isinstance(owner, Ref) or not isinstance(name, str) or name not in ATTRIBUTES:
            raise refuse_line(node, "an attribute of a tensor, such as x.shape")
        return "call_function", getattr, (owner, name), {}

    def _read_call(self, node: ast.Call) -> CallParts:
        path = self._read_path(node.func)
        if path is None and is_name(node.func, "getattr") and len(node.args) == 2:
            path = self._read_path(node)
            if path is not None:
                return "get_attr", path, (), {}
            key = node.args[1]
            name = key.value if isinstance(key, ast.Constant) else None
            return self._read_attribute(node, node.args[0], name)
        args = tuple(read_value(arg, self._alive) for arg in node.args)
        kwargs = read_keywords(node, self._alive)
        if path is not None:
            return "call_module", path, args, kwargs
        name = dotted_name(node.func)
        if isinstance(node.func, ast.Attribute) and (name is None or not name.startswith("torch.")):
            owner = read_value(node.func.value, self._alive)
            if not isinstance(owner, Ref) or node.func.attr not in methods():
                raise refuse_line(node, "a method of tensors that only computes")
            return "call_method", node.func.attr, (owner, *args), kwargs
        function = None if name is None or name == "getattr" else resolve(name, self._namespaces)
        if function is None:
            if name is not None and name.startswith("torch.ops.higher_order."):
                raise refuse_line(
                    node, "a graph without branches and loops of its own", name,
                    "Choose between tensors with torch.where instead of torch.cond, and loop over "
                    "a fixed number of steps",
                )  # fmt: skip
            raise refuse_line(
                node, "a function of torch or Python's operators", name,
                f"Deliver the model with 'handoff deliver', which traces into {name}; or, if it "
                "is an operator of your own, name its extension in the recipe",
            )  # fmt: skip
        return "call_function", function, args, kwargs
