"""Frozen dataclasses to plain JSON or TOML values and back, with a sentence for what doesn't fit.

The value types of this project travel between processes, into `delivery.toml`, recipes and
manifests. Some of those processes run on hosts that have torch and nothing else (a GPU worker, the
training side), so this is the standard library's dataclasses and one small codec, not a framework.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast

T = TypeVar("T")


class RecordInvalid(ValueError):
    """A plain value does not have the shape that a record asks for; the message says where."""


_LATER = types.MappingProxyType({"later": True})


def later(default: T, *, compare: bool = True) -> T:
    """Return a field for a record of which some were written without it.

    Without `compare`, records that differ in it alone are equal.
    """
    field: T = dataclasses.field(default=default, metadata=_LATER, compare=compare)
    return field


def to_plain(value: object) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """Return `value` as mappings, lists, strings, numbers, booleans and None.

    A field that was added to a record later (`later`) is left out while it has its default, so
    that what was written before, and its digest, stay as they were. A non-finite number becomes
    one of the strings `nan`, `inf` and `-inf`, which JSON lacks.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not (field.metadata == _LATER and getattr(value, field.name) == field.default)
        }
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (str, Path)):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise TypeError(f"{type(value).__name__} has no plain form")


def canonical_bytes(value: object) -> bytes:
    """Return the canonical form: JSON with sorted keys, no spaces, UTF-8, one final newline."""
    text = json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode() + b"\n"


def absolute(value: T) -> T:
    """Return a record with each path in it made absolute."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        before = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        after = {name: absolute(item) for name, item in before.items()}
        changed = {name: item for name, item in after.items() if item is not before[name]}
        return dataclasses.replace(value, **changed) if changed else value
    if isinstance(value, Path) and not value.is_absolute():
        return cast(T, value.absolute())
    if isinstance(value, tuple):
        items = tuple(absolute(item) for item in value)
        return (
            cast(T, items) if any(a is not b for a, b in zip(items, value, strict=True)) else value
        )
    return value


def from_plain(kind: type[T], plain: object, where: str = "") -> T:
    """Return the `kind` that `plain` describes.

    Raises `RecordInvalid` for a missing or unknown key, or a value of another type, naming the
    place (`inputs[0].shape[1]`), what was expected and what was found.
    """
    return cast(T, _decode(kind, plain, where or kind.__name__))


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _fail(where: str, expected: str, got: object) -> RecordInvalid:
    text = repr(got)
    shown = text if len(text) <= 80 else text[:77] + "..."
    return RecordInvalid(f"{where}: expected {expected}, got {shown}")


def _decode(kind: Any, plain: object, where: str) -> object:  # noqa: ANN401 - a type form
    origin = typing.get_origin(kind)
    if origin is Literal:
        if plain not in typing.get_args(kind):
            names = ", ".join(repr(choice) for choice in typing.get_args(kind))
            raise _fail(where, f"one of {names}", plain)
        return plain
    if origin in (Union, types.UnionType):
        return _decode_union(typing.get_args(kind), plain, where)
    if origin is tuple:
        if not isinstance(plain, (list, tuple)):
            raise _fail(where, "a list", plain)
        (item, _) = typing.get_args(kind)
        return tuple(_decode(item, value, f"{where}[{i}]") for i, value in enumerate(plain))
    if origin in (dict, Mapping):
        if not isinstance(plain, Mapping):
            raise _fail(where, "a table", plain)
        item = typing.get_args(kind)[1]
        return {str(key): _decode(item, value, f"{where}.{key}") for key, value in plain.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(cast(type, kind), plain, where)
    return _decode_scalar(kind, plain, where)


def _decode_union(choices: tuple[Any, ...], plain: object, where: str) -> object:
    if plain is None and type(None) in choices:
        return None
    errors = []
    for choice in choices:
        if choice is type(None):
            continue
        try:
            return _decode(choice, plain, where)
        except RecordInvalid as error:
            errors.append((_is_tagged(choice, plain), error))
    raise max(errors, key=lambda pair: pair[0])[1]


def _is_tagged(choice: Any, plain: object) -> bool:  # noqa: ANN401 - a type form
    if not (dataclasses.is_dataclass(choice) and isinstance(plain, Mapping) and "kind" in plain):
        return False
    return plain["kind"] in typing.get_args(_hints(cast(type, choice)).get("kind"))


def _decode_dataclass(kind: type, plain: object, where: str) -> object:
    if not isinstance(plain, Mapping):
        raise _fail(where, "a table", plain)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    unknown = sorted(set(map(str, plain)) - set(fields))
    if unknown:
        raise _fail(where, f"no other keys than {', '.join(fields)}", unknown[0])
    values = {}
    for name, field in fields.items():
        if name in plain:
            values[name] = _decode(_hints(kind)[name], plain[name], f"{where}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RecordInvalid(f"{where}.{name}: expected a value, got nothing")
    try:
        return kind(**values)
    except RecordInvalid:
        raise
    except ValueError as error:
        raise RecordInvalid(f"{where}: {error}") from error


def _decode_scalar(kind: Any, plain: object, where: str) -> object:  # noqa: ANN401 - a type
    if kind is object:
        return plain
    if kind is float:
        if isinstance(plain, str) and plain in ("nan", "inf", "-inf"):
            return float(plain)
        if isinstance(plain, (int, float)) and not isinstance(plain, bool):
            try:
                return float(plain)
            except OverflowError:
                raise _fail(where, "a number that a float can hold", "a longer one") from None
        raise _fail(where, "a number", plain)
    if kind is Path and isinstance(plain, str):
        return Path(plain)
    if isinstance(kind, type) and issubclass(kind, str) and isinstance(plain, str):
        try:
            return kind(plain)
        except ValueError as error:
            raise RecordInvalid(f"{where}: {error}") from error
    if kind is type(None) and plain is None:
        return None
    if type(plain) is kind:
        return plain
    names = {str: "a string", int: "a whole number", bool: "true or false"}
    raise _fail(where, names.get(kind, getattr(kind, "__name__", str(kind))), plain)
