"""The comparison of one output: what it accepts is right, and what is wrong it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from handoff.artifacts.recipe.tolerance import EXACT, Tolerance, luck
from handoff.tasks.verify.compare import TypicalErrorSize, compare, typical_error
from handoff.tasks.verify.scale import find_scale
from tests.tasks.verify.comparing.comparisons import FLOAT32, judge


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_what_equals_eager_is_always_accepted(values: list[float]) -> None:
    eager = torch.tensor(values, dtype=torch.float32)
    assert judge(eager.clone(), eager).accepted


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50),
    st.integers(min_value=0),
    st.floats(1.5, 1e3),
)
def test_one_element_outside_the_bound_is_never_accepted(
    values: list[float], place: int, factor: float
) -> None:
    eager = torch.tensor(values, dtype=torch.float64)
    package = eager.clone()
    at = place % len(values)
    size = max(abs(values[at]), float(eager.square().mean().sqrt()))
    bound = 1e-6 + 1e-5 * size
    package[at] += factor * bound
    judged = judge(package, eager, tolerance=Tolerance(rmse_factor=1e300, rmse_floor=1e300))
    assert not judged.accepted
    assert "outside atol" in judged.reasons[0]


def test_the_needed_tolerance_is_what_would_just_accept() -> None:
    eager = torch.tensor([1.0, 100.0], dtype=torch.float64)
    package = eager + torch.tensor([0.0, 0.5], dtype=torch.float64)
    judged = judge(package, eager)
    needed = judged.required_rtol
    generous = {"rmse_factor": 1.0, "rmse_floor": 1.0}
    assert judge(package, eager, tolerance=Tolerance(rtol=needed * 1.0001, **generous)).accepted
    assert not judge(package, eager, tolerance=Tolerance(rtol=needed * 0.9999, **generous)).accepted


def test_a_package_further_from_float64_than_twice_eager_is_refused_within_atol() -> None:
    exact = torch.zeros(10_000, dtype=torch.float64) + 1.0
    eager = (exact + 1e-7).float()
    package = (exact + 8e-7).float()
    judged = judge(package, eager, exact)
    assert not judged.accepted
    assert "RMSE to float64" in judged.reasons[0]
    assert judge(eager, package, exact).accepted, "the same distance the other way is closer"


def test_a_few_elements_that_eager_has_right_by_luck_are_judged_by_what_is_typical() -> None:
    exact = torch.tensor([1.0], dtype=torch.float64)
    eager, package = exact.float(), (exact + 1e-6).float()
    assert "RMSE to float64" in judge(package, eager, exact).reasons[0]
    judged = compare(
        package, eager, exact, FLOAT32, output=0, case="test", typical=TypicalErrorSize(0.0, 1e-7)
    )
    assert judged.accepted, judged.reasons
    wrong = (exact + 3e-6).float()
    assert not compare(
        wrong, eager, exact, FLOAT32, output=0, case="test", typical=TypicalErrorSize(0.0, 1e-7)
    ).accepted


def test_many_elements_are_judged_by_themselves_whatever_is_typical() -> None:
    exact = torch.ones(2000, dtype=torch.float64)
    eager, package = (exact + 1.2e-7).float(), (exact + 1.2e-6).float()
    assert not compare(
        package, eager, exact, FLOAT32, output=0, case="test", typical=TypicalErrorSize(1.0, 1.0)
    ).accepted


def test_what_is_typical_is_eagers_error_over_all_cases_relative_to_their_size() -> None:
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    pairs = [(exact + 0.5, exact), (exact, exact), (torch.tensor([math.nan]), exact[:1])]
    found = typical_error(pairs)
    assert found.relative == pytest.approx(math.sqrt(0.5 / 50.0))
    assert found.rmse == pytest.approx(math.sqrt(0.5 / 4))
    assert typical_error([]) == TypicalErrorSize(0.0, 0.0)


def test_an_element_that_is_near_zero_by_luck_is_judged_by_the_outputs_usual_error() -> None:
    exact = torch.tensor([1e-4], dtype=torch.float64)
    eager, package = (exact + 1e-9).float(), (exact + 2e-7).float()
    usual = TypicalErrorSize(rmse=1e-7, relative=1e-7)
    assert compare(package, eager, exact, FLOAT32, output=0, case="test", typical=usual).accepted


def test_few_errors_may_be_larger_by_chance_and_many_may_not() -> None:
    assert [round(luck(n), 1) for n in (1, 10, 1000, 10**6)] == [5.2, 2.2, 1.1, 1.0]
    exact = torch.ones(4, dtype=torch.float64)
    eager, package = (exact + 1.2e-7).float(), (exact + 1.2e-6).float()
    assert judge(package, eager, exact).accepted
    assert not judge(package.repeat(5000), eager.repeat(5000), exact.repeat(5000)).accepted


def test_an_element_near_zero_carries_the_rounding_of_the_outputs_own_size() -> None:
    eager = torch.tensor([10.0, -10.0, 1e-7])
    package = torch.tensor([10.0, -10.0, 5e-6])
    judged = judge(package, eager, (eager.double() + package.double()) / 2)
    assert judged.accepted, judged.reasons
    assert not judge(torch.tensor([10.0, -10.0, 5e-3]), eager).accepted


def test_a_zero_reference_hides_nothing() -> None:
    eager = torch.zeros(4)
    judged = judge(torch.tensor([0.0, 0.0, 0.0, 0.5]), eager)
    assert not judged.accepted
    assert judged.max_abs == 0.5
    assert judged.max_rel == 0.0, "there is nothing to be relative to"
    assert judged.required_rtol == math.inf


def test_another_shape_or_dtype_is_a_reason_of_its_own() -> None:
    eager = torch.zeros(2, 3)
    assert "shape [3, 2]" in judge(torch.zeros(3, 2), eager).reasons[0]
    assert "float64" in judge(eager.double(), eager).reasons[0]


def test_an_empty_output_is_compared_without_fault() -> None:
    assert judge(torch.zeros(0, 3), torch.zeros(0, 3)).accepted


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_integers_and_booleans_are_exact(dtype: torch.dtype) -> None:
    eager = torch.tensor([0, 1, 1], dtype=dtype)
    assert judge(eager.clone(), eager, tolerance=EXACT).accepted
    assert not judge(torch.tensor([0, 1, 0], dtype=dtype), eager, tolerance=EXACT).accepted


def test_a_small_feature_is_not_excused_by_a_large_one_beside_it() -> None:
    scores = torch.stack([torch.randn(40), 1.7e9 + torch.randn(40)], 1)
    wrong = scores.clone()
    wrong[:, 0] += 0.01
    given = (wrong, scores, scores.double(), FLOAT32)
    assert not compare(*given, output=0, case="test", scale=find_scale([scores])).accepted
    assert compare(*given, output=0, case="test").accepted, "which it is, of the whole output"


def test_where_alike_inputs_add_their_errors_up_the_elements_are_judged() -> None:
    exact = torch.ones(2000, dtype=torch.float64)
    eager = (exact + 1.2e-7).float()
    for package, accepted in (((exact + 4e-6).float(), True), ((exact + 2e-5).float(), False)):
        assert not judge(package, eager, exact).accepted
        judged = compare(package, eager, exact, FLOAT32, output=0, case="test", values="zeros")
        assert judged.accepted is accepted


def test_whole_numbers_that_float64_can_not_hold_apart_are_exact_too() -> None:
    eager = torch.tensor([2**53, -(2**62)])
    judged = judge(eager + torch.tensor([1, 0]), eager, tolerance=EXACT)
    assert "1 of 2 elements lie outside" in judged.reasons[0]
    assert judge(eager.clone(), eager, tolerance=EXACT).accepted
