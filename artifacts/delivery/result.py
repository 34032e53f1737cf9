"""The form of a model's result: its dictionaries, tuples and records around the tensors.

A package gives its tensors one by one. The form is written as Python writes it, with `tensor` where
each of them goes, in their order:

    {'logits': tensor, 'bounds': (tensor, [tensor, None])}
    Scored(scores=tensor, pooled=tensor)

It is parsed and never evaluated. A record (a named tuple or a dataclass) becomes a named tuple of
its name and fields, since its class is the training side's.
"""

from __future__ import annotations

import ast
import math
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from keyword import iskeyword
from typing import Any, Literal

_TENSOR = "tensor"
_LIMIT_CHARACTERS = 1 << 16
_LIMIT_DEPTH = 32
_TEXTS: dict[str, Callable[[list[str]], str]] = {
    "tuple": lambda parts: f"({', '.join(parts)}{',' if len(parts) == 1 else ''})",
    "list": lambda parts: f"[{', '.join(parts)}]",
    "dict": lambda parts: f"{{{', '.join(parts)}}}",
}

Key = str | int | bool


@dataclass(frozen=True)
class ResultForm:
    """A tensor, a fixed value, or what holds others: `parts` by key, field or place.

    `name` is a record's.
    """

    kind: Literal["tensor", "value", "tuple", "list", "dict", "record"]
    value: bool | int | float | str | None = None
    name: str = ""
    parts: tuple[tuple[Key, ResultForm], ...] = ()

    def __str__(self) -> str:
        """Return the form as `parse_result` reads it."""
        if self.kind == "tensor":
            return _TENSOR
        if self.kind == "value":
            return repr(self.value)
        if self.kind == "record":
            return f"{self.name}({', '.join(f'{key}={part}' for key, part in self.parts)})"
        named = self.kind == "dict"
        return _TEXTS[self.kind]([f"{key!r}: {part}" if named else str(part)
                                  for key, part in self.parts])  # fmt: skip

    @property
    def tensors(self) -> int:
        """How many tensors it has."""
        return (self.kind == "tensor") + sum(part.tensors for _, part in self.parts)

    @property
    def is_flat(self) -> bool:
        """Return whether it is a tensor, or a tuple of tensors alone: what a package gives."""
        return self.kind == "tensor" or (
            self.kind == "tuple" and all(part.kind == "tensor" for _, part in self.parts)
        )

    def fill(self, tensors: Sequence[Any]) -> Any:  # noqa: ANN401 - a result has any form
        """Return the result with `tensors` in it, as many as it has, of any shapes and dtypes."""
        return self._fill(iter(tensors))

    def _fill(self, tensors: Iterator[Any]) -> Any:  # noqa: ANN401 - as above
        if self.kind == "tensor":
            return next(tensors)
        if self.kind == "value":
            return self.value
        parts = [part._fill(tensors) for _, part in self.parts]
        if self.kind == "dict":
            return dict(zip((key for key, _ in self.parts), parts, strict=True))
        if self.kind == "record":
            return _record_type(self.name, tuple(str(key) for key, _ in self.parts))(*parts)
        return parts if self.kind == "list" else tuple(parts)

    def agreed(self, other: ResultForm, place: str = "") -> tuple[ResultForm | None, list[str]]:
        """Return the form that both are, and the places of values that differ: None is there.

        No form where they differ in more than values.
        """
        if self.kind == other.kind == "value":
            same = repr(self.value) == repr(other.value)
            return (self, []) if same else (replace(self, value=None), [place])
        own_shape, other_shape = (
            (one.kind, one.name, [key for key, _ in one.parts]) for one in (self, other)
        )
        if own_shape != other_shape:
            return None, []
        parts: list[tuple[Key, ResultForm]] = []
        differing_places: list[str] = []
        for (key, part), (_, like) in zip(self.parts, other.parts, strict=True):
            within = f".{key}" if self.kind == "record" else f"[{key!r}]"
            merged, differing = part.agreed(like, place + within)
            if merged is None:
                return None, []
            parts.append((key, merged))
            differing_places += differing
        return replace(self, parts=tuple(parts)), differing_places


A_TENSOR = ResultForm("tensor")


@cache
def _record_type(name: str, fields: tuple[str, ...]) -> Callable[..., Any]:
    return namedtuple(name, fields)


def is_record_of(name: str, fields: Sequence[str]) -> bool:
    """Return whether a named tuple can have that name and those fields."""
    return all(
        word.isidentifier() and not iskeyword(word) and word != _TENSOR for word in (name, *fields)
    ) and not any(field.startswith("_") for field in fields)


def parse_result(text: str) -> ResultForm:
    """Return the form that `text` writes; raise `ValueError` for a text that is none."""
    try:
        if len(text) > _LIMIT_CHARACTERS:
            raise ValueError("too long")
        return _parse(ast.parse(text, mode="eval").body, _LIMIT_DEPTH)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ValueError(
            "expected a result such as {'scores': tensor, 'rest': (tensor, None)}, "
            f"got {text[:80]!r}"
        ) from None


def _parse(tree: ast.AST, depth: int) -> ResultForm:
    if depth == 0:
        raise ValueError("too deep")

    def parts_of(values: Sequence[ast.AST]) -> tuple[tuple[Key, ResultForm], ...]:
        return tuple((place, _parse(value, depth - 1)) for place, value in enumerate(values))

    match tree:
        case ast.Name(id=name) if name == _TENSOR:
            return A_TENSOR
        case ast.Tuple(elts=values):
            return ResultForm("tuple", parts=parts_of(values))
        case ast.List(elts=values):
            return ResultForm("list", parts=parts_of(values))
        case ast.Dict(keys=keys, values=values):
            named = [_parse_value(key) for key in keys]
            items = tuple(zip(named, (part for _, part in parts_of(values)), strict=True))
            if all(isinstance(key, str | int) for key in named) and len(set(named)) == len(named):
                return ResultForm("dict", parts=items)  # type: ignore[arg-type]
        case ast.Call(func=ast.Name(id=name), args=[], keywords=words):
            fields = [word.arg or "" for word in words]
            named_parts = parts_of([word.value for word in words])
            if is_record_of(name, fields) and len(set(fields)) == len(fields):
                parts = tuple(zip(fields, (part for _, part in named_parts), strict=True))
                return ResultForm("record", name=name, parts=parts)
        case _:
            return ResultForm("value", _parse_value(tree))
    raise ValueError("no such part")


def _parse_value(tree: ast.AST | None) -> bool | int | float | str | None:
    is_negative = isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub)
    if tree is None or not (is_negative or isinstance(tree, ast.Constant)):
        raise ValueError("no plain value")
    value = ast.literal_eval(tree)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ValueError("no plain value")
