"""What a release was compared at, of what is declared, read off its record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from handoff.artifacts.delivery.signature import Dimension, ModelSignature
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.tolerance import Tolerance
from handoff.artifacts.release.coverage import (
    beyond_compared,
    closest_call,
    compared_sizes,
    describe_compared_inputs,
)
from handoff.artifacts.release.manifest import TargetRecord
from tests.artifacts.samples import sample_manifest, sample_target

TWO = ModelSignature((), (), {"batch": Dimension(1, 64), "length": Dimension(1, 512)})
(DEVIATION, *_) = sample_target("cpu-avx2").deviations


def compared(*cases: str, special: tuple[str, ...] = ()) -> TargetRecord:
    found = tuple(replace(DEVIATION, case=case, special=case in special) for case in cases)
    return replace(sample_target("cpu-avx2"), deviations=found)


def test_sizes_are_read_off_the_names_of_ordinary_cases() -> None:
    target = compared(
        "batch=3 length=1 seed=0", "batch=64 length=3 seed=1", "batch=2 length=5 example=0",
        "batch=17 length=3 zeros", special=("batch=17 length=3 zeros",),
    )  # fmt: skip
    assert compared_sizes(TWO, target) == {"batch": [2, 3, 64], "length": [1, 3, 5]}
    assert describe_compared_inputs(TWO, target) == (
        "3 of ordinary values", "1 of special values", "batch 2, 3, 64", "length 1, 3, 5",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cases", "beyond"),
    [
        (("batch=17 length=3 seed=0", "batch=3 length=512 seed=0"), "batch above 17"),
        (("batch=17 length=300 seed=0",), "batch above 17, length above 300"),
        (
            ("batch=64 length=3 seed=0", "batch=3 length=512 seed=0"),
            "batch=64 with length=512",
        ),
        (("batch=64 length=512 seed=0", "batch=1 length=1 seed=0"), ""),
        # Of what was compared at no size nothing is claimed here: the page says that.
        ((), ""),
    ],
)
def test_what_is_declared_and_larger_than_all_that_was_compared_is_named(
    cases: tuple[str, ...], beyond: str
) -> None:
    assert beyond_compared(TWO, compared(*cases)) == beyond


def test_the_closest_call_is_the_output_that_needs_the_most_of_what_was_agreed() -> None:
    cases = (
        replace(DEVIATION, required_rtol=2e-6),
        replace(DEVIATION, required_rtol=5e-6),
        replace(DEVIATION, required_rtol=1.0, special=True),
    )
    target = replace(sample_target("cpu-avx2"), deviations=cases)
    recipe = Recipe(tolerance={"float32": Tolerance(atol=1e-6, rtol=1e-5)})
    call = closest_call(replace(sample_manifest(target), recipe=recipe), target)
    assert str(call) == "5e-06 of 1e-05"
    within = replace(target, deviations=(replace(DEVIATION, required_rtol=0.0),))
    assert str(closest_call(sample_manifest(within), within)) == "none, within atol"
    exact = replace(target, deviations=(replace(DEVIATION, dtype="int64"),))
    assert closest_call(sample_manifest(exact), exact) is None
