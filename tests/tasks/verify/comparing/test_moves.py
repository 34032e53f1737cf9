"""What rounding alone moves an element by, and what that lets a package off."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from handoff.artifacts.recipe.tolerance import EXACT, Deviation, Tolerance
from handoff.tasks.verify.compare import compare, typical_error
from handoff.tasks.verify.elements import Moves
from handoff.tasks.verify.scale import find_scale
from tests.tasks.verify.comparing.comparisons import FLOAT32, judge, moving


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
            typical=replace(typical_error([(eager, exact)]), move_ratio=move / error),
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
