"""Frozen dataclasses to plain JSON or TOML values and back, with a sentence for what doesn't fit.

The value types of this project travel between processes, into `delivery.toml`, recipes and
manifests. Some of those processes run on hosts that have torch and nothing else (a GPU worker, the
training side), so this is the standard library's dataclasses and one small codec, not a framework.

A job is what a step is asked: its type says what the step answers, so that nobody casts.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, Union, cast

T = TypeVar("T")


class RecordInvalid(ValueError):
    """A plain value does not have the shape that a record asks for; the message says where."""


_LATER = types.MappingProxyType({"later": True})


def added_field(default: T, *, compare: bool = True) -> T:
    """Return a field for a record of which some were written without it.

    Without `compare`, records that differ in it alone are equal.
    """
    field: T = dataclasses.field(default=default, metadata=_LATER, compare=compare)
    return field


def to_plain(value: object) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """Return `value` as mappings, lists, strings, numbers, booleans and None.

    A field that was added to a record later (`added_field`) is left out while it has its default,
    so that what was written before, and its digest, stay as they were. A non-finite number becomes
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
    try:
        return cast(T, _decoder(cast(Hashable, kind))(plain))
    except _DecodeError as error:
        raise RecordInvalid(f"{where or kind.__name__}{error.message}") from error.cause


class _DecodeError(Exception):
    """A value doesn't fit; the message begins with the place within what is being decoded."""

    def __init__(self, message: str, cause: Exception | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause

    def within(self, place: str) -> _DecodeError:
        """Return the same of what holds it at `place`."""
        return _DecodeError(f"{place}{self.message}", self.cause)


def _mismatch(expected: str, got: object) -> _DecodeError:
    text = repr(got)
    shown = text if len(text) <= 80 else text[:77] + "..."
    return _DecodeError(f": expected {expected}, got {shown}")


# What makes a value of plain ones. Each kind's is made once: a release has thousands of values, and
# a serving process decodes them before it answers.
_Decoder = Callable[[object], object]


@cache
def _decoder(kind: Any) -> _Decoder:  # noqa: ANN401 - a type form
    origin = typing.get_origin(kind)
    if origin is Literal:
        return _decoder_of_choices(typing.get_args(kind))
    if origin in (Union, types.UnionType):
        return _decoder_of_union(typing.get_args(kind))
    if origin is tuple:
        return _decoder_of_list(typing.get_args(kind)[0])
    if origin in (dict, Mapping):
        return _decoder_of_table(typing.get_args(kind)[1])
    if dataclasses.is_dataclass(kind):
        return _decoder_of_record(cast(type, kind))
    return _decoder_of_scalar(kind)


def _decoder_of_choices(choices: tuple[Any, ...]) -> _Decoder:
    def decode(plain: object) -> object:
        if plain in choices:
            return plain
        raise _mismatch(f"one of {', '.join(repr(choice) for choice in choices)}", plain)

    return decode


def _decoder_of_union(choices: tuple[Any, ...]) -> _Decoder:
    takes_none = type(None) in choices
    kinds = [choice for choice in choices if choice is not type(None)]

    def decode(plain: object) -> object:
        if plain is None and takes_none:
            return None
        errors = []
        for kind in kinds:
            try:
                return _decoder(kind)(plain)
            except _DecodeError as error:
                errors.append((_is_tagged(kind, plain), error))
        raise max(errors, key=lambda pair: pair[0])[1]

    return decode


def _is_tagged(choice: Any, plain: object) -> bool:  # noqa: ANN401 - a type form
    if not (dataclasses.is_dataclass(choice) and isinstance(plain, Mapping) and "kind" in plain):
        return False
    hints = typing.get_type_hints(cast(type, choice))
    return plain["kind"] in typing.get_args(hints.get("kind"))


def _decoder_of_list(kind: Any) -> _Decoder:  # noqa: ANN401 - a type form
    decode_item = _decoder(kind)

    def decode(plain: object) -> object:
        if not isinstance(plain, (list, tuple)):
            raise _mismatch("a list", plain)
        items = []
        try:
            for value in plain:
                items.append(decode_item(value))
        except _DecodeError as error:
            raise error.within(f"[{len(items)}]") from None
        return tuple(items)

    return decode


def _decoder_of_table(kind: Any) -> _Decoder:  # noqa: ANN401 - a type form
    decode_item = _decoder(kind)

    def decode(plain: object) -> object:
        if not isinstance(plain, Mapping):
            raise _mismatch("a table", plain)
        items, key = {}, ""
        try:
            for key, value in plain.items():
                items[str(key)] = decode_item(value)
        except _DecodeError as error:
            raise error.within(f".{key}") from None
        return items

    return decode


def _decoder_of_record(kind: type) -> _Decoder:
    @cache
    def fields() -> dict[str, tuple[_Decoder, bool]]:
        # Not before it is asked for: a record may hold others of its own kind.
        hints = typing.get_type_hints(kind)
        missing = dataclasses.MISSING
        return {
            field.name: (
                _decoder(hints[field.name]),
                field.default is missing and field.default_factory is missing,
            )
            for field in dataclasses.fields(kind)
            if field.init
        }

    def decode(plain: object) -> object:
        if not isinstance(plain, Mapping):
            raise _mismatch("a table", plain)
        known = fields()
        if unknown := plain.keys() - known.keys():
            raise _mismatch(f"no other keys than {', '.join(known)}", min(map(str, unknown)))
        values, name = {}, ""
        try:
            for name, (decode_field, is_needed) in known.items():
                if name in plain:
                    values[name] = decode_field(plain[name])
                elif is_needed:
                    raise _DecodeError(": expected a value, got nothing")
        except _DecodeError as error:
            raise error.within(f".{name}") from None
        try:
            return kind(**values)
        except RecordInvalid:
            raise
        except ValueError as error:
            raise _DecodeError(f": {error}", error) from error

    return decode


_SCALARS: dict[type, str] = {str: "a string", int: "a whole number", bool: "true or false"}


def _decoder_of_scalar(kind: Any) -> _Decoder:  # noqa: ANN401 - a type
    if kind is object:
        return lambda plain: plain
    if kind is float:
        return _decode_float
    if kind is Path:
        return lambda plain: Path(plain) if isinstance(plain, str) else _require_type(Path, plain)
    if isinstance(kind, type) and issubclass(kind, str):
        return lambda plain: _decode_text(kind, plain)
    return lambda plain: plain if type(plain) is kind else _require_type(kind, plain)


def _decode_float(plain: object) -> float:
    if type(plain) is float:
        return plain
    if isinstance(plain, str) and plain in ("nan", "inf", "-inf"):
        return float(plain)
    if isinstance(plain, (int, float)) and not isinstance(plain, bool):
        try:
            return float(plain)
        except OverflowError:
            raise _mismatch("a number that a float can hold", "a longer one") from None
    raise _mismatch("a number", plain)


def _decode_text(kind: type[str], plain: object) -> str:
    if type(plain) is kind:
        return plain
    if not isinstance(plain, str):
        raise _mismatch(_SCALARS.get(kind, kind.__name__), plain)
    try:
        return kind(plain)
    except ValueError as error:
        raise _DecodeError(f": {error}", error) from error


def _require_type(kind: Any, plain: object) -> object:  # noqa: ANN401 - a type
    """Return `plain` where it is of just that type; raise `_DecodeError` for others."""
    if type(plain) is kind:
        return plain
    raise _mismatch(_SCALARS.get(kind, getattr(kind, "__name__", str(kind))), plain)


R_co = TypeVar("R_co", covariant=True)


class Job(Generic[R_co]):
    """The base of every step's job, by the type of its result; it holds nothing itself."""
