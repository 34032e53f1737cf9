"""Our parsers of TOML and JSON: whatever the bytes are, a value or one sentence."""

from __future__ import annotations

import json
import string
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handoff.artifacts.delivery.contract import (
    DeliveryContract,
    Lineage,
    ModelSection,
    format_contract,
    parse_contract,
    read_contract,
)
from handoff.artifacts.delivery.signature import Dimension, TensorSpec
from handoff.artifacts.errors import DeliveryUnreadable, UsageProblem
from handoff.artifacts.files.strict_parsing import parse_json, parse_toml
from handoff.artifacts.recipe.reading import read_recipe
from handoff.artifacts.record import RecordInvalid

CONTRACT = DeliveryContract(
    ModelSection("toy", "Toy", "2.15.0", "torch.fx"),
    (TensorSpec("x", "float32", ("batch", 4)), TensorSpec("ids", "int64", ("batch",), 0, 9)),
    dimensions={"batch": Dimension(1, 64)},
    source=Lineage(author="somebody"),
)
NINES = "9" * 5000
HOSTILE = {
    "a number of 5000 digits": (f"a = {NINES}", "numbers and dates|longer one"),
    "a number of 70 bits": (f"a = {1 << 70}", "numbers of 64 bits, got a longer one in a"),
    "a number beyond a float": ("a = 1e999", "a float can hold, got 1e999"),
    "deep arrays": ("a = " + "[" * 100_000 + "]" * 100_000, "levels"),
    "deep tables": ("a = " + "{a=" * 5000 + "1" + "}" * 5000, "levels"),
    "a dotted key": ("a" + ".a" * 100_000 + " = 1", "levels, got more in line 1"),
    "a dotted table": ("[a" + ".'a'" * 100_000 + "]", "levels, got more in line 1"),
    "a key twice": ("a = 1\na = 2", "Cannot overwrite"),
    "a table twice": ("[a]\n[a]", "declare"),
    "a NUL": ("a = 'x\x00y'", "character"),
    "an escape": ("a = 'x\x1by'", "character"),
    "a day that isn't": ("a = 2026-02-31", "numbers and dates|TOML"),
    "half a line": ("a = ", "TOML"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_toml_that_no_file_of_ours_holds_is_one_sentence(name: str, tmp_path: Path) -> None:
    text, match = HOSTILE[name]
    with pytest.raises(RecordInvalid, match=match) as caught:
        parse_toml(text.encode())
    assert len(str(caught.value)) < 300
    (tmp_path / "delivery.toml").write_bytes(text.encode())
    with pytest.raises(DeliveryUnreadable, match=match):
        read_contract(tmp_path)
    with pytest.raises(UsageProblem, match=match):
        read_recipe(tmp_path / "delivery.toml")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"\xef\xbb\xbfa = 1", "byte order mark"),
        (b"a = '\xff'", "UTF-8 text, got the byte 0xff at 5"),
        ("a = 1".encode("utf-16"), "UTF-8 text"),
        (b"a" * (5 << 20), "at most 4194304 bytes"),
    ],
)
def test_bytes_that_are_no_utf8_text_are_one_sentence(
    data: bytes, match: str, tmp_path: Path
) -> None:
    (tmp_path / "delivery.toml").write_bytes(data)
    with pytest.raises(DeliveryUnreadable, match=match):
        read_contract(tmp_path)
    with pytest.raises(UsageProblem, match=match):
        read_recipe(tmp_path / "delivery.toml")


def test_a_size_of_a_hundred_bits_is_one_sentence(tmp_path: Path) -> None:
    text = format_contract(CONTRACT)
    (tmp_path / "delivery.toml").write_text(text.replace("max = 64", f"max = {10**30}"))
    with pytest.raises(DeliveryUnreadable, match=r"of 64 bits, got a longer one in dimensions"):
        read_contract(tmp_path)
    # As it was, it is read.
    (tmp_path / "delivery.toml").write_text(text)
    assert read_contract(tmp_path) == CONTRACT


def refusal(parse: Callable[[bytes], object], data: bytes) -> str:
    """Return the sentence in which a parser refuses; '' where it reads."""
    try:
        parse(data)
    except ValueError as error:
        return str(error)
    return ""


_PIECES = st.sampled_from(
    ["[", "]", "{", "}", "=", ".", ",", '"', "'", '"""', "\n", "\r", " ", "#", "a", "inputs", "[[",
     "]]", "0x", "1e999", "-", "nan", "inf", "9" * 30, "true", "1979-05-27T07:32:00Z", "\\u0000",
     "\\", "\x00", "\x1b", "\ufeff", "\u202e", "shape", "name", "model", "format = 1"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(_PIECES, max_size=40).map("".join) | st.binary(max_size=60))
def test_any_text_is_a_contract_or_a_sentence(text: str | bytes) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    if sentence := refusal(parse_toml, data):
        assert sentence.startswith("expected ")
    else:
        assert parse_toml(data) == tomllib.loads(data.decode()) or "nan" in data.decode()
    with pytest.raises(RecordInvalid):
        parse_contract(data)


_CONTRACT = format_contract(CONTRACT)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(_CONTRACT)), st.integers(0, 30), _PIECES)
def test_a_contract_with_another_piece_is_a_contract_or_a_sentence(
    at: int, left_out: int, piece: str
) -> None:
    changed = _CONTRACT[:at] + piece + _CONTRACT[at + left_out :]
    assert "\n" not in refusal(parse_contract, changed.encode())


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 62), 1 << 62) | st.floats(allow_nan=False,
        allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(string.printable, max_size=5), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(_JSON)
def test_json_is_read_as_it_was_written(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "text",
    ["1e999", "-1e999", "NaN", "[" * 100_000, "9" * 5000, '{"a": 1, "a": 2}', '"\\ud800"',
     "\ufeff{}", '"\x00"', '"\x1b"', ""],
)  # fmt: skip
def test_json_of_more_than_one_meaning_is_one_sentence(text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - json's own, too
        parse_json(text.encode())
    assert "\n" not in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_json_or_a_sentence(data: bytes) -> None:
    assert len(refusal(parse_json, data)) < 300
