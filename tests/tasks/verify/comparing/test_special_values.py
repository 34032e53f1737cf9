"""NaN and infinity in the comparison of one output."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from handoff.artifacts.recipe.tolerance import EXACT, Deviation, Tolerance
from handoff.tasks.verify.compare import compare
from handoff.tasks.verify.elements import same_elements
from handoff.tasks.verify.scale import find_scale
from tests.tasks.verify.comparing.comparisons import FLOAT32, judge, moving


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_special_values_have_to_be_the_same(special: float) -> None:
    eager = torch.tensor([1.0, special])
    assert judge(eager.clone(), eager).accepted
    judged = judge(torch.tensor([1.0, 0.0]), eager)
    assert judged.mismatched_non_finite == 1
    assert not judged.accepted


def test_a_special_value_may_be_float64s_where_eager_has_another() -> None:
    eager, exact = torch.tensor([math.nan, 1.0]), torch.tensor([math.inf, 1.0]).double()
    assert judge(torch.tensor([math.inf, 1.0]), eager, exact).accepted
    assert judge(eager.clone(), eager, exact).accepted
    assert not judge(torch.tensor([5.0, 1.0]), eager, exact).accepted
    assert not judge(torch.tensor([-math.inf, 1.0]), eager, exact).accepted
    finite = torch.tensor([3.0, 1.0])
    assert judge(torch.tensor([math.inf, 1.0]), finite, exact).accepted
    assert not judge(torch.tensor([-math.inf, 1.0]), finite, exact).accepted


def test_a_nan_where_eager_has_a_number_is_refused() -> None:
    judged = judge(torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0]))
    assert not judged.accepted
    assert math.isnan(judged.max_abs)
    assert judged.required_rtol == math.inf, "not 0, which would be recorded as the best of all"
    assert "which no rtol allows" in judged.reasons[0]


@given(
    st.lists(st.floats(width=32), min_size=1, max_size=20),
    st.data(),
    st.floats(0, 1e30),
    st.floats(0, 1e30),
)
def test_a_nan_of_the_packages_own_is_never_accepted(
    values: list[float], data: st.DataObject, atol: float, rtol: float
) -> None:
    eager = torch.tensor(values, dtype=torch.float32)
    numbers = (~eager.isnan()).nonzero().flatten().tolist()
    assume(numbers)
    package = eager.clone()
    package[data.draw(st.sampled_from(numbers))] = math.nan
    judged = judge(package, eager, tolerance=Tolerance(atol=atol, rtol=rtol, rmse_floor=1e30))
    assert not judged.accepted
    assert judged.reasons


def test_the_same_elements_are_equal_numbers_and_nan_beside_nan() -> None:
    largest = torch.finfo(torch.float32).max
    left = torch.tensor([1.0, math.nan, math.nan, math.inf, math.inf, 0.0])
    right = torch.tensor([1.0, math.nan, 0.0, largest, math.inf, -0.0])
    assert same_elements(left, right).tolist() == [True, True, False, False, True, True]


def test_infinity_of_the_other_sign_is_refused() -> None:
    assert not judge(torch.tensor([-math.inf]), torch.tensor([math.inf])).accepted


def test_infinite_inputs_may_give_nan_or_infinity_by_the_order_of_operations() -> None:
    eager = torch.tensor([math.nan, 1.0])
    package = torch.tensor([math.inf, 1.0])
    assert not judge(package, eager).accepted
    assert compare(
        package, eager, eager.double(), FLOAT32, output=0, case="test", values="infinite"
    ).accepted
    finite = torch.tensor([2.0, 1.0])
    for wrong, right in ((finite, eager), (eager, finite)):
        assert not compare(
            wrong, right, right.double(), FLOAT32, output=0, case="test", values="infinite"
        ).accepted


def test_where_eager_underflows_to_nan_a_right_number_is_right() -> None:
    eager, exact = torch.tensor([math.nan, 1.0]), torch.tensor([0.25, 1.0]).double()
    assert judge(torch.tensor([0.25, 1.0]), eager, exact).accepted
    assert not judge(torch.tensor([0.26, 1.0]), eager, exact).accepted


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_a_special_value_that_rounding_doesnt_make_is_not_let_off(special: float) -> None:
    eager = torch.tensor([1.0, special, 2.0, 3.0])
    package = torch.tensor([1.0, 0.0, 2.0, 3.0])

    def judged(moves: torch.Tensor) -> Deviation:
        return compare(
            package, eager, eager.double(), EXACT, output=0, case="test", moved=moving(moves),
            scale=find_scale([eager]),
        )  # fmt: skip

    small = torch.full((4,), 1e-8)
    assert "something else in the package" in judged(small).reasons[0]
    assert "something else in the package" in judged(torch.zeros(4)).reasons[0]
    assert judged(torch.tensor([0.0, math.inf, 0.0, 0.0])).accepted
