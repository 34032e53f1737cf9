"""Narrowing: which requests a version refuses that another one takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.artifacts.mlflow.tags import contract_parameters
from handoff.artifacts.release.difference import differences, refused_requests
from tests.artifacts.samples import sample_manifest

IDS = TensorSpec("ids", "int64", ("batch", 20), 0, 4999)
X = TensorSpec("x", "float32", ("batch", "length"))
SIZES = {"batch": Dimension(1, 1024), "length": Dimension(1, 64)}
SERVED = ModelSignature((IDS, X), (), SIZES)


def changed(*inputs: TensorSpec, **sizes: Dimension) -> ModelSignature:
    return ModelSignature(inputs or (IDS, X), (), {**SIZES, **sizes})


@pytest.mark.parametrize(
    "after",
    [
        SERVED,
        changed(TensorSpec("ids", "int64", ("batch", 20), 0, 9999), X),
        changed(TensorSpec("ids", "int64", ("batch", 20)), X),
        changed(batch=Dimension(1, 4096), length=Dimension(0, 64)),
        # What floats are drawn from refuses nothing.
        changed(IDS, TensorSpec("x", "float32", ("batch", "length"), 0, 1)),
        ModelSignature(
            (IDS, TensorSpec("x", "float32", ("rows", "length"))), (),
            {**SIZES, "rows": Dimension(1, 1024)},
        ),
    ],
)  # fmt: skip
def test_a_version_that_takes_as_much_or_more_refuses_nothing(after: ModelSignature) -> None:
    assert refused_requests(SERVED, after) == ()


@pytest.mark.parametrize(
    ("after", "phrase"),
    [
        (changed(TensorSpec("ids", "int64", ("batch", 20), 21, 821), X),
         "those with ids of 0 to 20 and 822 to 4999: it takes 21 to 821"),
        (changed(batch=Dimension(2, 1024)), "those with batch of 1: it takes 2 to 1024"),
        (changed(length=Dimension(4, 64, multiple_of=4)),
         "those with length of 1 to 3: it takes 4 to 64 in steps of 4"),
        (changed(batch=Dimension(0, 1024, multiple_of=8)),
         "those with batch of 1 to 1024: it takes 0 to 1024 in steps of 8"),
        (changed(length=Dimension(1, 32)), "those with length of 33 to 64: it takes 1 to 32"),
        (changed(IDS, TensorSpec("x", "float32", ("batch", 64))),
         "those with axis 1 of x of 1 to 63: it takes 64"),
        (changed(TensorSpec("ids", "int32", ("batch", 20), 0, 4999), X),
         "those with ids of int64: it takes int32"),
        (changed(IDS, TensorSpec("x", "float32", ("batch",))),
         "those with x of 2 axes: it takes 1"),
        (changed(IDS), "those that give x: it has no such input"),
        (changed(IDS, X, TensorSpec("mask", "bool", ("batch",))),
         "those that don't give mask: it needs that, too"),
        (changed(X, IDS), "those that give ids, x in this order: it takes x, ids"),
    ],
)  # fmt: skip
def test_what_a_narrower_version_refuses_is_named(after: ModelSignature, phrase: str) -> None:
    assert refused_requests(SERVED, after) == (phrase,)


def test_values_that_were_never_limited_are_refused_by_any_limit() -> None:
    free = changed(TensorSpec("ids", "int64", ("batch", 20)), X)
    assert refused_requests(free, SERVED) == (
        "those with other values of ids than 0 to 4999: any were taken",
    )


def test_sizes_that_have_to_be_equal_now_are_told() -> None:
    apart = ModelSignature(
        (IDS, TensorSpec("x", "float32", ("rows", "length"))), (),
        {**SIZES, "rows": Dimension(1, 1024)},
    )  # fmt: skip
    (phrase,) = refused_requests(apart, SERVED)
    assert phrase == ("those in which axis 0 of x and axis 0 of ids differ in size: both are batch")


def test_a_catalogue_has_a_row_for_each_input_and_size_and_few_enough_rows() -> None:
    assert contract_parameters(SERVED) == {
        "input ids": "int64 [batch, 20], 0 to 4999",
        "input x": "float32 [batch, length]",
        "size batch": "1 to 1024",
        "size length": "1 to 64",
    }
    many = tuple(TensorSpec(f"x{place}", "float32", (4,)) for place in range(150))
    rows = contract_parameters(ModelSignature(many))
    assert len(rows) < 100
    assert "input x149: float32 [4]" in rows["further inputs"]


def test_a_difference_has_rows_for_what_is_taken_and_where_it_comes_from() -> None:
    before = sample_manifest()
    ids = TensorSpec("ids", "int64", ("batch",), 0, 4999, "table users of 5000 rows")
    wide, narrow = (
        replace(before, signature=ModelSignature((one,), (), {"batch": limits}))
        for one, limits in (
            (ids, Dimension(1, 64)),
            (replace(ids, low=21.0, high=821.0, origin="example"), Dimension(2, 64)),
        )
    )
    changes = {(one.name, one.before, one.after) for one in differences(wide, narrow)}
    assert changes == {
        ("values ids", "0 to 4999 (table users of 5000 rows)", "21 to 821 (example)"),
        ("size batch", "1 to 64", "2 to 64"),
    }
    assert differences(wide, wide) == ()
