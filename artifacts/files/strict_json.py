"""JSON (RFC 8259) as signed records are read: with one meaning, in Python and in C++."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

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
            data.decode(), object_pairs_hook=_unique_names, parse_constant=_refuse_constant,
            parse_float=_finite,
        )  # fmt: skip
    except RecursionError as error:
        raise ValueError(f"expected at most {_MOST_LEVELS} levels") from error
    _check_levels(value)
    # Half of a pair can't be written in UTF-8 but by its number.
    if b"\\u" in data:
        _check_text(value)
    return value


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("expected keys that differ")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"expected a number, got {name}")


def _finite(text: str) -> float:
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
