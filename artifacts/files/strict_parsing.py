"""JSON (RFC 8259) and TOML as ours are read: bounded, and with one meaning."""

from __future__ import annotations

import json
import math
import re
import tomllib
from typing import Any, NoReturn

from handoff.artifacts.record import RecordInvalid

# As the C++ runner has it (infra/runner/json.h); no record of ours has a quarter of them.
_MOST_LEVELS = 64


def parse_json(data: bytes) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """Return what the UTF-8 JSON in `data` says.

    Raises `ValueError` for anything else, and for what two readers may take for different things:
    a repeated key, NaN, infinities and numbers beyond a float's, half of a surrogate pair, more
    than 64 levels.
    """
    try:
        value = json.loads(
            data.decode(), object_pairs_hook=_make_object, parse_constant=_refuse_constant,
            parse_float=_parse_json_float,
        )  # fmt: skip
    except RecursionError as error:
        raise ValueError(f"expected at most {_MOST_LEVELS} levels") from error
    _check_levels(value)
    # Half of a pair can't be written in UTF-8 but by its number.
    if b"\\u" in data:
        _check_text(value)
    return value


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("expected keys that differ")
    return table


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"expected a number, got {name}")


def _parse_json_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"expected a number that a float can hold, got {text[:40]}")
    return value


def _check_levels(value: object) -> None:
    # Level by level and not by recursion, because the depth is what is in doubt.
    level: list[Any] = [value]
    for _ in range(_MOST_LEVELS + 1):
        level = [
            item for one in level if isinstance(one, (dict, list))
            for item in (one.values() if isinstance(one, dict) else one)
        ]  # fmt: skip
        if not level:
            return
    raise ValueError(f"expected at most {_MOST_LEVELS} levels")


def _check_text(value: object) -> None:
    """Raise `UnicodeEncodeError` for half of a surrogate pair in a text or a key."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, dict):
        for key, item in value.items():
            key.encode()
            _check_text(item)
    elif isinstance(value, list):
        for item in value:
            _check_text(item)


# The largest contract that was seen, of 400 inputs, has 60 kB.
_MOST_BYTES = 4 << 20
_MOST_TOML_LEVELS = 32
_LARGEST = 1 << 63
# tomllib takes time by the square of a dotted key's parts, and of nested brackets.
_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(
    rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{_MOST_TOML_LEVELS}}}"
)


def parse_toml(data: bytes) -> dict[str, Any]:
    """Return what the UTF-8 TOML in `data` says.

    Raises `RecordInvalid`, with one sentence, for anything else: other text, a repeated key, whole
    numbers beyond 64 bits, numbers beyond a float's, more than 32 levels, more than 4 MiB.
    """
    if len(data) > _MOST_BYTES:
        raise RecordInvalid(f"expected at most {_MOST_BYTES} bytes, got {len(data)}")
    if data.startswith(b"\xef\xbb\xbf"):
        raise RecordInvalid("expected UTF-8 without a byte order mark, got one at the beginning")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordInvalid(
            f"expected UTF-8 text, got the byte {data[error.start]:#04x} at {error.start}"
        ) from error
    if long := _LONG_KEY.search(text):
        line = text.count("\n", 0, long.start()) + 1
        raise RecordInvalid(f"expected at most {_MOST_TOML_LEVELS} levels, got more in line {line}")
    try:
        value = tomllib.loads(text, parse_float=_parse_toml_float)
    except tomllib.TOMLDecodeError as error:
        end = f"(at line {text.count(chr(10)) + 1}, column {len(text) - text.rfind(chr(10))})"
        message = str(error).replace("(at end of document)", end)
        raise RecordInvalid(f"expected TOML, got: {message}") from error
    except RecursionError as error:
        raise RecordInvalid(f"expected at most {_MOST_TOML_LEVELS} levels, got more") from error
    except RecordInvalid:
        raise
    except ValueError as error:  # what int() and datetime say of a number or a day
        raise RecordInvalid(f"expected numbers and dates that there are, got: {error}") from error
    _check_values(value)
    return value


def _parse_toml_float(text: str) -> float:
    value = float(text)
    if math.isinf(value) and "inf" not in text:
        raise RecordInvalid(f"expected a number that a float can hold, got {text[:40]}")
    return value


def _check_values(value: dict[str, Any]) -> None:
    # Level by level and not by recursion, because the depth is what is in doubt.
    level: list[tuple[str, object]] = [("", value)]
    for _ in range(_MOST_TOML_LEVELS + 1):
        below: list[tuple[str, object]] = []
        for name, one in level:
            if isinstance(one, dict):
                below += [(f"{name}.{key}" if name else key, item) for key, item in one.items()]
            elif isinstance(one, list):
                below += [(name, item) for item in one]
            elif isinstance(one, int) and not -_LARGEST <= one < _LARGEST:
                raise RecordInvalid(
                    f"expected whole numbers of 64 bits, got a longer one in {name}"
                )
        if not below:
            return
        level = below
    raise RecordInvalid(f"expected at most {_MOST_TOML_LEVELS} levels, got more")
