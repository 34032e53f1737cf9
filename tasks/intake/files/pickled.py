"""Decodes a pickle into plain descriptions: no class is looked up and nothing is called.

A machine of its own for the opcodes that `torch.save` writes (protocol 2). A class or function
becomes a `Global` (two names), a call becomes a `Call` or the plain container it stands for, an
object becomes an `Instance`. The standard unpickler is never used.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from handoff.tasks.intake.errors import DAMAGED, refuse, shorten

_MAX_BYTES = 64 << 20
_MAX_OPCODES = 3_000_000
_SET_NAMES = {("__builtin__", "set"), ("builtins", "set")}
ORDERED_DICT = ("collections", "OrderedDict")
CALLABLE = {
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_tensor_v3"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_parameter_with_state"),
    ("torch._tensor", "_rebuild_from_type_v2"),
    ("torch", "device"),
    ("torch", "Size"),
}


@dataclass(frozen=True)
class Global:
    """The name of a class, a function or a constant that a pickle mentions."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, eq=False)
class Call:
    """A call that a pickle asks for and that nobody has made."""

    function: Global
    args: tuple[object, ...]


@dataclass(eq=False)
class Instance:
    """An object of the class that `kind` names, with the state that a pickle gives it."""

    kind: Global
    state: dict[object, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Storage:
    """The bytes of tensors: member `data/<key>` of the archive, `numel` elements of `kind`."""

    kind: Global
    key: str
    location: str
    numel: int


class OrderedItems(dict[object, object]):
    """An OrderedDict's items; its attributes, such as `_metadata`, are left out."""


_OPCODES = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes}


def decode(data: bytes, where: str) -> tuple[object, frozenset[str]]:
    """Return what the pickle describes, and the keys of all storages that it mentions.

    Raises `DeliveryUnreadable` for an opcode, a class or a call that `torch.save` doesn't write
    for modules and tensors.
    """
    machine = _Machine(where)
    if len(data) > _MAX_BYTES:
        raise machine.refuse(f"at most {_MAX_BYTES} bytes", f"{len(data)} bytes")
    try:
        machine.run(io.BytesIO(data))
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise machine.refuse("a whole pickle", f"{type(error).__name__}: {error}") from error
    if len(machine.stack) != 1 or machine.marks:
        raise machine.refuse("one object", f"{len(machine.stack)} objects")
    return machine.stack[0], frozenset(machine.keys)


class _Machine:
    def __init__(self, where: str) -> None:
        self.where = where
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}
        self.keys: set[str] = set()

    def refuse(self, expected: str, got: object, remedy: str = DAMAGED) -> Exception:
        return refuse(
            f"the pickle in {self.where} is not one of modules and tensors",
            expected=expected,
            got=got,
            where=self.where,
            remedy=remedy,
        )

    def run(self, stream: io.BytesIO) -> None:
        """Take the steps that the stream's opcodes name, up to its STOP."""
        for _ in range(_MAX_OPCODES):
            opcode = _OPCODES.get(stream.read(1))
            # Before its argument is read, since those of other opcodes may be of any size.
            if opcode is None or opcode.name not in _HANDLERS:
                name = "an unknown one" if opcode is None else opcode.name
                raise self.refuse("the opcodes of torch.save", name)
            arg = None if opcode.arg is None else opcode.arg.reader(stream)
            _HANDLERS[opcode.name](self, arg)
            if opcode.name == "STOP":
                return
        raise self.refuse(f"at most {_MAX_OPCODES} opcodes", "more")

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> Any:  # noqa: ANN401 - a pickle's stack holds anything
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise IndexError("a value below a mark")
        return self.stack.pop()

    def pop_mark(self) -> list[Any]:
        at = self.marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items

    def pop_tuple(self, size: int) -> None:
        items = [self.pop() for _ in range(size)]
        self.push(tuple(reversed(items)))

    def put(self, arg: int) -> None:
        self.memo[arg] = self.stack[-1]

    def find(self, arg: str) -> None:
        module, _, name = arg.partition(" ")
        is_allowed = (module, name) in _SET_NAMES or (module, name) == ORDERED_DICT
        if not is_allowed and module.split(".")[0] != "torch":
            raise refuse(
                f"{self.where} holds an object of the training team's own code",
                expected="modules of torch.nn and tensors",
                got=f"{module}.{name}",
                where=self.where,
                remedy=(
                    "Deliver the model with 'handoff deliver', which traces into "
                    f"{shorten(name)} instead of storing it"
                ),
            )
        self.push(Global(module, name))

    def call(self) -> None:
        args, function = self.pop(), self.pop()
        if not isinstance(function, Global) or type(args) is not tuple:
            raise self.refuse("a call of a named function", f"a call of {type(function).__name__}")
        name = (function.module, function.name)
        if name == ORDERED_DICT and args == ():
            self.push(OrderedItems())
        elif name in _SET_NAMES and len(args) == 1 and isinstance(args[0], list):
            if not all(isinstance(item, str) for item in args[0]):
                raise self.refuse("sets of names", "a set of something else")
            self.push(set(args[0]))
        elif name in CALLABLE:
            self.push(Call(function, args))
        else:
            raise self.refuse(
                "dense tensors and parameters",
                f"a call of {function}",
                "Deliver the model before quantisation and with plain dense parameters",
            )

    def create(self) -> None:
        args, kind = self.pop(), self.pop()
        if not isinstance(kind, Global) or args != ():
            raise self.refuse("objects made without arguments", type(kind).__name__)
        self.push(Instance(kind))

    def build(self) -> None:
        state, target = self.pop(), self.stack[-1]
        if type(target) is OrderedItems and type(state) is dict:
            return
        if not isinstance(target, Instance) or type(state) is not dict or target.state:
            raise self.refuse("state for a module", f"state for {type(target).__name__}")
        target.state.update(state)

    def set_items(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) not in (dict, OrderedItems) or len(pairs) % 2:
            raise self.refuse("items for a dictionary", type(target).__name__)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(key, (str, int)):
                raise self.refuse("names as keys", type(key).__name__)
            target[key] = value

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise self.refuse("items for a list", type(target).__name__)
        target.extend(items)

    def persist(self) -> None:
        item = self.pop()
        match item:
            case ("storage", Global() as kind, str(key), str(location), int(numel)):
                self.keys.add(key)
                self.push(Storage(kind, key, location, numel))
            case _:
                raise self.refuse("a storage", type(item).__name__)

    def pop_pair(self) -> list[Any]:
        value, key = self.pop(), self.pop()
        return [key, value]


def _push_memoised(machine: _Machine, arg: Any) -> None:  # noqa: ANN401
    machine.push(machine.memo[arg])


def _push_constant(value: object) -> Callable[[_Machine, Any], None]:
    return lambda machine, arg: machine.push(value)


_HANDLERS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda m, arg: None,
    "STOP": lambda m, arg: None,
    "MARK": lambda m, arg: m.marks.append(len(m.stack)),
    "NONE": _push_constant(None),
    "NEWTRUE": _push_constant(True),
    "NEWFALSE": _push_constant(False),
    "EMPTY_TUPLE": _push_constant(()),
    "EMPTY_LIST": lambda m, arg: m.push([]),
    "EMPTY_DICT": lambda m, arg: m.push({}),
    "TUPLE": lambda m, arg: m.push(tuple(m.pop_mark())),
    "TUPLE1": lambda m, arg: m.pop_tuple(1),
    "TUPLE2": lambda m, arg: m.pop_tuple(2),
    "TUPLE3": lambda m, arg: m.pop_tuple(3),
    "APPEND": lambda m, arg: m.append([m.pop()]),
    "APPENDS": lambda m, arg: m.append(m.pop_mark()),
    "SETITEM": lambda m, arg: m.set_items(m.pop_pair()),
    "SETITEMS": lambda m, arg: m.set_items(m.pop_mark()),
    "GLOBAL": lambda m, arg: m.find(arg),
    "REDUCE": lambda m, arg: m.call(),
    "NEWOBJ": lambda m, arg: m.create(),
    "BUILD": lambda m, arg: m.build(),
    "BINPERSID": lambda m, arg: m.persist(),
    "BINPUT": lambda m, arg: m.put(arg),
    "LONG_BINPUT": lambda m, arg: m.put(arg),
    "BINGET": _push_memoised,
    "LONG_BINGET": _push_memoised,
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"), _Machine.push
    ),
}
