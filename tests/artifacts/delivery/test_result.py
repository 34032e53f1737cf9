"""The form of a result: it is written, read back, filled with tensors, and never evaluated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.artifacts.delivery.contract import Structure
from handoff.artifacts.delivery.result import A_TENSOR, ResultForm, parse_result

VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False).filter(
    lambda value: abs(value) != float("inf")
) | st.text(max_size=9)  # fmt: skip
FIELDS = st.from_regex(r"[a-z]{1,5}_[a-z0-9]{0,3}", fullmatch=True)


def holding(parts: st.SearchStrategy[ResultForm]) -> st.SearchStrategy[ResultForm]:
    """Return forms that hold such parts."""
    listed = st.lists(parts, max_size=3).map(lambda found: tuple(enumerate(found)))
    keyed = st.dictionaries(st.text(max_size=5) | st.integers(2, 9), parts, max_size=3)
    named = st.dictionaries(FIELDS, parts, min_size=1, max_size=3)
    return st.one_of(
        listed.map(lambda found: ResultForm("tuple", parts=found)),
        listed.map(lambda found: ResultForm("list", parts=found)),
        keyed.map(lambda found: ResultForm("dict", parts=tuple(found.items()))),
        named.map(lambda found: ResultForm("record", name="Scored", parts=tuple(found.items()))),
    )


FORMS = st.recursive(
    st.just(A_TENSOR) | VALUES.map(lambda value: ResultForm("value", value)), holding, max_leaves=9
)


@given(FORMS)
def test_a_form_is_read_back_as_it_was_written(form: ResultForm) -> None:
    assert parse_result(str(form)) == form


def test_tensors_go_where_they_belong() -> None:
    form = parse_result("{'a': tensor, 3: (tensor, [None, tensor]), 'b': Two(low=tensor, n=-1.5)}")
    assert form.tensors == 4
    filled = form.fill(["a", "b", "c", "d"])
    assert list(filled) == ["a", 3, "b"]
    assert (filled["a"], filled[3]) == ("a", ("b", [None, "c"]))
    assert (filled["b"].low, filled["b"].n, type(filled["b"]).__name__) == ("d", -1.5, "Two")


@pytest.mark.parametrize(
    "text",
    [
        "", "tensors", "print(tensor)", "__import__('os').system('true')", "A(tensor)", "{**a}",
        "{'a': tensor, 'a': tensor}", "A(x=tensor, x=tensor)", "[x for x in tensor]", "{tensor: 1}",
        "A(_x=tensor)", "tensor + tensor", "f'{tensor}'", "[" * 60 + "]" * 60,
        "1e999", "tensor\x00", "'" + "a" * (1 << 16) + "'",
    ],
)  # fmt: skip
def test_what_is_no_form_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="expected a result such as"):
        parse_result(text)


@pytest.mark.parametrize(
    ("one", "other", "both", "places"),
    [
        ("(tensor, 3)", "(tensor, 3)", "(tensor, 3)", []),
        ("{'x': tensor, 'n': 3}", "{'x': tensor, 'n': 5}", "{'x': tensor, 'n': None}", ["['n']"]),
        ("A(x=[tensor, 1])", "A(x=[tensor, 2])", "A(x=[tensor, None])", [".x[1]"]),
        ("(1, tensor)", "(True, tensor)", "(None, tensor)", ["[0]"]),
        ("(tensor, tensor)", "[tensor, tensor]", "None", []),
        ("(tensor, None)", "(tensor, tensor)", "None", []),
    ],
)
def test_what_differs_in_values_alone_agrees_on_none(
    one: str, other: str, both: str, places: list[Any]
) -> None:
    form, differing = parse_result(one).agreed(parse_result(other))
    assert (str(form), differing) == (both, places)


def test_a_structure_whose_result_has_other_outputs_than_it_names_is_refused() -> None:
    named = ("['a']", "['b']")
    assert Structure(outputs=named, result="{'a': tensor, 'b': tensor}").form_of(2) is not None
    assert Structure(outputs=named, result="{'a': tensor, 'b': tensor}").form_of(3) is None
    with pytest.raises(ValueError, match="a result of 2 tensors, as outputs names them, got 1"):
        Structure(outputs=named, result="{'a': tensor}")
