"""The input plan: the same every time, and where compilers go wrong."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from artifacts.signature import Dimension, ModelSignature, TensorSpec
from tasks.plan import draw_inputs, plan_cases


def signature(**dimensions: Dimension) -> ModelSignature:
    """Return a signature with one float input of the dimensions, and ids, and a mask."""
    shape: tuple[int | str, ...] = (*dimensions, 3)
    return ModelSignature(
        (
            TensorSpec("x", "float32", shape),
            TensorSpec("ids", "int64", shape, 5, 9),
            TensorSpec("mask", "bool", shape),
        ),
        (),
        dimensions,
    )


def test_the_ends_of_a_range_their_neighbours_and_odd_sizes_are_planned() -> None:
    sizes = {c.sizes["batch"] for c in plan_cases(signature(batch=Dimension(1, 1024)), seeds=1)}
    assert {1, 2, 7, 17, 1024} <= sizes


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 3))
def test_every_planned_size_lies_in_its_range(low: int, more: int, seeds: int) -> None:
    limits = Dimension(low, low + more)
    cases = plan_cases(signature(batch=limits), seeds)
    assert cases
    assert all(case.sizes["batch"] in limits for case in cases)
    assert len({case.name for case in cases}) == len(cases)


def test_every_dimension_of_several_is_varied() -> None:
    cases = plan_cases(signature(batch=Dimension(1, 8), length=Dimension(2, 30)), seeds=1)
    assert {case.sizes["batch"] for case in cases} >= {1, 2, 7, 8}
    assert {case.sizes["length"] for case in cases} >= {2, 3, 7, 17, 30}


def test_a_model_of_fixed_shapes_has_one_case_a_seed() -> None:
    assert len(plan_cases(signature(), seeds=3)) == 3


def test_a_case_draws_the_same_inputs_every_time_and_another_seed_others() -> None:
    chosen = signature(batch=Dimension(1, 8))
    second = next(case for case in plan_cases(chosen, seeds=2) if case.seed == 1)
    first = next(case for case in plan_cases(chosen, seeds=2) if case.sizes == second.sizes)
    assert first.sizes == second.sizes
    again = draw_inputs(chosen, first)
    assert all(torch.equal(a, b) for a, b in zip(draw_inputs(chosen, first), again, strict=True))
    assert not torch.equal(draw_inputs(chosen, second)[0], again[0])


def test_integers_stay_within_their_range_and_reach_its_ends() -> None:
    chosen = signature(batch=Dimension(1, 64))
    drawn = torch.cat([draw_inputs(chosen, c)[1].flatten() for c in plan_cases(chosen, seeds=2)])
    assert (int(drawn.min()), int(drawn.max())) == (5, 9)


def test_booleans_are_drawn_both_ways() -> None:
    chosen = signature(batch=Dimension(64, 64))
    mask = draw_inputs(chosen, plan_cases(chosen, seeds=1)[0])[2]
    assert mask.dtype is torch.bool
    assert mask.any()
    assert not mask.all()


@pytest.mark.parametrize(
    ("dtype", "low", "high", "within"),
    [
        ("int64", 0.5, 2.5, (1, 2)),
        ("int64", -2.5, -1.5, (-2, -2)),
        ("int8", -1000.0, 1000.0, (-128, 127)),
        ("uint8", 0.0, 255.0, (0, 255)),
        # What an example of hashed ids gives: its largest is rounded up in a float.
        ("int64", 0.0, float(2**63 - 1), (0, 2**63 - 1)),
        ("int64", -float(2**63), float(2**63), (-(2**63), 2**63 - 1)),
        ("int32", -float(2**31), float(2**31), (-(2**31), 2**31 - 1)),
    ],
)
def test_whole_numbers_are_drawn_that_the_range_and_the_dtype_have(
    dtype: str, low: float, high: float, within: tuple[int, int]
) -> None:
    spec = ModelSignature((TensorSpec("ids", dtype, (500,), low, high),))
    (drawn,) = draw_inputs(spec, plan_cases(spec, seeds=1)[0])
    assert drawn.dtype is getattr(torch, dtype)
    assert within[0] <= int(drawn.min()) <= int(drawn.max()) <= within[1]
    assert int(drawn.min()) < int(drawn.max()) or within[0] == within[1]


@pytest.mark.parametrize(
    ("dtype", "low", "high", "reason"),
    [
        ("float32", -float("inf"), float("inf"), "expected finite values for x"),
        ("float32", float("nan"), 1.0, "expected finite values for x"),
        ("float32", 2.0, 1.0, "expected low <= high for x"),
        ("int64", 0.2, 0.8, "a whole number between"),
    ],
)
def test_a_range_that_nothing_can_be_drawn_from_is_no_specification(
    dtype: str, low: float, high: float, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        TensorSpec("x", dtype, (2,), low, high)
