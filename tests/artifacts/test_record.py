"""A record's bytes are the same wherever they are written, so that its digest is."""

from __future__ import annotations

from handoff.artifacts.delivery.signature import TensorSpec
from handoff.artifacts.record import canonical_bytes


def test_the_canonical_form_has_sorted_keys_no_spaces_and_one_final_newline() -> None:
    assert canonical_bytes({"b": ["ä", None], "a": 1.5}) == '{"a":1.5,"b":["ä",null]}\n'.encode()


def test_what_was_added_to_a_record_later_is_left_out_while_it_is_the_default() -> None:
    spec = TensorSpec("x", "int64", ("batch",), 0, 9)
    assert canonical_bytes(spec) == (
        b'{"dtype":"int64","high":9,"low":0,"name":"x","shape":["batch"]}\n'
    )


def test_only_floating_point_inputs_without_a_range_are_unlimited() -> None:
    assert TensorSpec("x", "float32", (2,)).is_unlimited
    assert TensorSpec("x", "bfloat16", (2,)).is_unlimited
    assert not TensorSpec("x", "float32", (2,), 0.0, 1.0).is_unlimited
    assert not TensorSpec("x", "int64", (2,)).is_unlimited
