"""The comparison of one output: what it accepts is right, and what is wrong it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from handoff.artifacts.recipe.tolerance import DEFAULT_TOLERANCES, EXACT, Deviation, Tolerance, luck
from handoff.tasks.verify.compare import Typical, compare, typical_error
from handoff.tasks.verify.elements import Moves, same_elements
from handoff.tasks.verify.scale import find_scale

FLOAT32 = DEFAULT_TOLERANCES["float32"]


def judge(
    package: torch.Tensor,
    eager: torch.Tensor,
    float64: torch.Tensor | None = None,
    tolerance: Tolerance = FLOAT32,
) -> Deviation:
    """Compare, with eager itself as the float64 reference unless one is given."""
    exact = eager.double() if float64 is None else float64
    return compare(package, eager, exact, tolerance, output=0, case="test")


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
        package, eager, exact, FLOAT32, output=0, case="test", typical=Typical(0.0, 1e-7)
    )
    assert judged.accepted, judged.reasons
    wrong = (exact + 3e-6).float()
    assert not compare(
        wrong, eager, exact, FLOAT32, output=0, case="test", typical=Typical(0.0, 1e-7)
    ).accepted


def test_many_elements_are_judged_by_themselves_whatever_is_typical() -> None:
    exact = torch.ones(2000, dtype=torch.float64)
    eager, package = (exact + 1.2e-7).float(), (exact + 1.2e-6).float()
    assert not compare(
        package, eager, exact, FLOAT32, output=0, case="test", typical=Typical(1.0, 1.0)
    ).accepted


def test_what_is_typical_is_eagers_error_over_all_cases_relative_to_their_size() -> None:
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    pairs = [(exact + 0.5, exact), (exact, exact), (torch.tensor([math.nan]), exact[:1])]
    found = typical_error(pairs)
    assert found.relative == pytest.approx(math.sqrt(0.5 / 50.0))
    assert found.rmse == pytest.approx(math.sqrt(0.5 / 4))
    assert typical_error([]) == Typical(0.0, 0.0)


def test_an_element_that_is_near_zero_by_luck_is_judged_by_the_outputs_usual_error() -> None:
    exact = torch.tensor([1e-4], dtype=torch.float64)
    eager, package = (exact + 1e-9).float(), (exact + 2e-7).float()
    usual = Typical(rmse=1e-7, relative=1e-7)
    assert compare(package, eager, exact, FLOAT32, output=0, case="test", typical=usual).accepted


def moving(by: torch.Tensor | float) -> Moves:
    """Return what says that rounding moves every element by so much."""
    return lambda _runs: torch.as_tensor(by, dtype=torch.float64)


def test_where_rounding_moves_an_element_a_package_is_held_to_no_less() -> None:
    exact = torch.linspace(0.5, 1.0, 2000, dtype=torch.float64)
    noise = torch.linspace(-1e-3, 1e-3, 2000, dtype=torch.float64)
    eager, package = (exact + noise).float(), (exact - noise).float()

    def judged(got: torch.Tensor) -> Deviation:
        return compare(got, eager, exact, FLOAT32, output=0, case="test", moved=moving(noise.abs()))

    assert judged(package).accepted, "it is exactly as far off, the other way"
    assert judged(exact.float()).accepted, "it is right, and eager isn't"
    assert not judged((exact - 5 * noise).float()).accepted
    assert not judge(package, eager, exact).accepted, "nothing says that rounding does that"


def test_an_element_that_never_moves_has_no_room_whatever_its_neighbours_do() -> None:
    eager = torch.linspace(1.0, 2.0, 1000)
    package, moves = eager.clone(), torch.zeros(1000)
    package[:10] += 1.0
    moves[:5] = 1.0
    judged = compare(
        package, eager, eager.double(), FLOAT32, output=0, case="test", moved=moving(moves)
    )
    assert judged.reasons[0].startswith("5 of 1000 elements lie outside")
    package[5:10] = eager[5:10]
    assert compare(
        package, eager, eager.double(), FLOAT32, output=0, case="test", moved=moving(moves)
    ).accepted


def test_elements_that_rounding_moves_by_their_own_size_are_counted_as_not_comparable() -> None:
    eager = torch.linspace(1.0, 2.0, 100)
    moves = torch.zeros(100)
    moves[:30] = 5.0
    package = torch.where(moves > 0, -eager, eager)
    judged = compare(
        package, eager, eager.double(), FLOAT32, output=0, case="test", moved=moving(moves)
    )
    assert judged.accepted
    assert judged.incomparable == 30


def test_it_is_asked_how_far_rounding_moves_only_where_something_lies_outside() -> None:
    def never(_runs: int) -> torch.Tensor:
        raise AssertionError("asked")

    eager = torch.linspace(1.0, 2.0, 100)
    assert compare(
        eager.clone(), eager, eager.double(), FLOAT32, output=0, case="test", moved=never
    ).accepted


def test_more_runs_are_made_only_while_few_elements_ask_for_them() -> None:
    eager, asked = torch.linspace(1.0, 2.0, 1000), []

    def moved(runs: int) -> torch.Tensor:
        asked.append(runs)
        return torch.zeros(1000)

    for wrong, most in ((3, 36), (900, 4)):
        asked.clear()
        package = eager.clone()
        package[:wrong] += 1.0
        assert not compare(
            package, eager, eager.double(), FLOAT32, output=0, case="test", moved=moved
        ).accepted
        assert max(asked) == most


@pytest.mark.parametrize(("move", "most"), [(1e-3, 1), (1.2e-5, 2), (2.0, 4)])
def test_no_more_runs_are_made_than_let_all_off_or_tell_what_is_not_comparable(
    move: float, most: int
) -> None:
    eager, asked = torch.linspace(1.0, 2.0, 1000), []

    def moved(runs: int) -> torch.Tensor:
        asked.append(runs)
        # The median of the moves lets no element off by itself.
        moves = torch.zeros(1000, dtype=torch.float64)
        moves[:3] = move * runs
        return moves

    package = eager.clone()
    package[:3] += 5e-5
    judged = compare(package, eager, eager.double(), FLOAT32, output=0, case="test", moved=moved)
    assert judged.accepted
    assert max(asked) == most
    assert judged.incomparable == (3 if move > 1.0 else 0)


def test_few_errors_may_be_larger_by_chance_and_many_may_not() -> None:
    assert [round(luck(n), 1) for n in (1, 10, 1000, 10**6)] == [5.2, 2.2, 1.1, 1.0]
    exact = torch.ones(4, dtype=torch.float64)
    eager, package = (exact + 1.2e-7).float(), (exact + 1.2e-6).float()
    assert judge(package, eager, exact).accepted
    assert not judge(package.repeat(5000), eager.repeat(5000), exact.repeat(5000)).accepted


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


def test_what_rounding_decides_may_be_decided_otherwise_in_few_elements() -> None:
    eager = torch.arange(100) % 7
    flips = torch.zeros(100)
    flips[:30] = 1.0

    def judged(wrong: int, moved: Moves | None) -> Deviation:
        package = eager.clone()
        package[:wrong] += 1
        return compare(package, eager, eager.double(), EXACT, output=0, case="test", moved=moved)

    assert judged(5, moving(flips)).accepted
    assert judged(5, moving(flips)).at_step == 5
    assert not judged(5, None).accepted, "nothing says that rounding decides them"
    assert "more than 10%" in judged(25, moving(flips)).reasons[0]
    assert judged(35, moving(flips)).reasons[0].startswith("5 of 100 elements lie outside")


def test_agreeing_with_float64_excuses_no_element_that_rounding_does_not_decide() -> None:
    eager, exact = torch.tensor([3, 1]), torch.tensor([4, 1])
    assert judge(eager.clone(), eager, exact, EXACT).accepted
    assert not judge(torch.tensor([4, 1]), eager, exact, EXACT).accepted


def test_a_small_feature_is_not_excused_by_a_large_one_beside_it() -> None:
    scores = torch.stack([torch.randn(40), 1.7e9 + torch.randn(40)], 1)
    wrong = scores.clone()
    wrong[:, 0] += 0.01
    given = (wrong, scores, scores.double(), FLOAT32)
    assert not compare(*given, output=0, case="test", scale=find_scale([scores])).accepted
    assert compare(*given, output=0, case="test").accepted, "which it is, of the whole output"


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


def test_where_alike_inputs_add_their_errors_up_the_elements_are_judged() -> None:
    exact = torch.ones(2000, dtype=torch.float64)
    eager = (exact + 1.2e-7).float()
    for package, accepted in (((exact + 4e-6).float(), True), ((exact + 2e-5).float(), False)):
        assert not judge(package, eager, exact).accepted
        judged = compare(package, eager, exact, FLOAT32, output=0, case="test", values="zeros")
        assert judged.accepted is accepted


def test_where_eager_underflows_to_nan_a_right_number_is_right() -> None:
    eager, exact = torch.tensor([math.nan, 1.0]), torch.tensor([0.25, 1.0]).double()
    assert judge(torch.tensor([0.25, 1.0]), eager, exact).accepted
    assert not judge(torch.tensor([0.26, 1.0]), eager, exact).accepted


def test_whole_numbers_that_float64_can_not_hold_apart_are_exact_too() -> None:
    eager = torch.tensor([2**53, -(2**62)])
    judged = judge(eager + torch.tensor([1, 0]), eager, tolerance=EXACT)
    assert "1 of 2 elements lie outside" in judged.reasons[0]
    assert judge(eager.clone(), eager, tolerance=EXACT).accepted


def test_a_decision_more_than_its_share_of_few_elements_is_luck() -> None:
    eager, package = torch.tensor([3, 1, 4, 1, 5]), torch.tensor([4, 1, 4, 1, 5])
    deviation = compare(
        package, eager, eager.double(), EXACT, output=0, case="test", moved=moving(torch.ones(5))
    )
    assert deviation.accepted, deviation.reasons
    assert deviation.at_step == 1, "which counts over all cases together"


def test_what_eager_is_off_by_lets_elements_off_without_asking_how_far_they_move() -> None:
    torch.manual_seed(0)
    exact = torch.randn(40, 5).double() * torch.tensor([1.0, 1.0, 1.0, 1.0, 1e-6])
    eager = (exact * (1 + 3e-5 * torch.randn(40, 5))).float()
    scale, noise = find_scale([eager]), find_scale([eager.double() - exact])

    def never(_: int) -> torch.Tensor:
        pytest.fail("asked")

    def judged(package: torch.Tensor, moved: Moves) -> Deviation:
        return compare(
            package, eager, exact, Tolerance(atol=0.0, rtol=1e-5), output=0, case="test",
            moved=moved, scale=scale, noise=noise, values="large",
        )  # fmt: skip

    assert judged((exact * (1 + 3e-5 * torch.randn(40, 5))).float(), never).accepted
    still = moving(torch.zeros(40, 5))
    for factor in (torch.full((5,), 1e-3), torch.tensor([0, 0, 0, 0, 1e-3])):
        assert not judged((eager * (1 + factor)).float(), still).accepted
    # However far eager errs, that is some digits beyond what was agreed, and no step.
    off = eager.clone()
    off[3, 2] += 1.0
    assert not judged(off, still).accepted


def test_a_package_may_be_noisier_than_eager_as_far_as_its_rmse_may_be() -> None:
    torch.manual_seed(0)
    # Channels side by side, of which one is summed from more terms than the others.
    usual = torch.tensor([1e-6, 1e-6, 4e-6]).reshape(3, 1, 1)
    exact = torch.randn(8, 3, 40, 40).double()
    eager = (exact + usual * torch.randn(8, 3, 40, 40)).float()
    noisy = (exact + 2 * usual * torch.randn(8, 3, 40, 40)).float()
    scale, noise = find_scale([eager]), find_scale([eager.double() - exact])

    def judged(package: torch.Tensor, moved: Moves) -> Deviation:
        return compare(
            package, eager, exact, Tolerance(atol=0.0, rtol=5e-6), output=0, case="test",
            moved=moved, scale=scale, noise=noise, typical=typical_error([(eager, exact)]),
        )  # fmt: skip

    def never(_: int) -> torch.Tensor:
        pytest.fail("asked")

    assert judged(noisy, never).accepted
    still = moving(torch.zeros(8, 3, 40, 40))
    local = noisy.clone()
    local[2, 0, 3, 4] += 1.5e-4
    assert judged(local, still).reasons[0].startswith("1 of 38400 elements")
    # However noisy it is, that lets no element off by more, and what it lets off counts.
    broad = (exact + 6 * usual * torch.randn(8, 3, 40, 40)).float()
    assert not judged(broad, still).accepted
    assert "its RMSE to float64" in " ".join(judged(broad, still).reasons)


def test_what_one_case_shows_of_how_far_rounding_moves_an_output_serves_the_others() -> None:
    torch.manual_seed(0)
    exact = torch.randn(4000, dtype=torch.float64)
    eager, package = exact.float(), (exact + 2e-6 * torch.randn(4000)).float()

    error = float((eager - exact).square().mean().sqrt())

    def judged(move: float) -> Deviation:
        return compare(
            package, eager, exact, Tolerance(rtol=1e-4), output=0, case="test",
            moved=moving(torch.zeros(4000)),
            typical=replace(typical_error([(eager, exact)]), more_exact=move / error),
        )  # fmt: skip

    assert judged(2e-6).accepted
    assert not judged(0.0).accepted
    assert not judged(2e-7).accepted


def test_an_element_of_eager_at_a_step_lets_no_other_off() -> None:
    exact = torch.arange(9.0).double() + 1.0
    eager, package = exact.float(), exact.float()
    eager[3] += 1.0
    package[3] += 1.0
    package[5] += 1e-3
    noise = find_scale([eager.double() - exact])
    still = moving(torch.zeros(9))
    deviation = compare(
        package, eager, exact, Tolerance(atol=0.0, rtol=1e-5), output=0, case="test", moved=still,
        noise=noise,
    )  # fmt: skip
    assert deviation.reasons[0].startswith("1 of 9 elements")


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


def test_of_an_output_within_what_was_agreed_everything_is_comparable() -> None:
    torch.manual_seed(0)
    exact = torch.randn(4000, dtype=torch.float64)
    # Wide of float64 by more than their own size, and yet what was agreed.
    eager, package = ((exact + 2 * torch.randn(4000)).float() for _ in range(2))
    found = compare(
        package, eager, exact, Tolerance(atol=40.0), output=0, case="test",
        moved=moving(torch.full((4000,), 50.0)), typical=typical_error([(eager, exact)]),
        noise=find_scale([eager.double() - exact]),
    )  # fmt: skip
    assert (found.accepted, found.incomparable) == (True, 0)
