"""What the curves and the two targets show: exponents at the end, ratios within a round."""

from __future__ import annotations

import pytest

from tests.studies.benchmarks.growth import exponent_at_the_end, markdown
from tests.studies.benchmarks.growth_models import CURVES
from tests.studies.benchmarks.two_targets import Build, in_turn, ratio_of


@pytest.mark.parametrize(("power", "sizes"), [(0.0, [10, 100]), (1.0, [1, 7, 50]), (2.0, [3, 9])])
def test_the_exponent_of_a_curve_is_that_of_its_power(power: float, sizes: list[int]) -> None:
    curve = [2.5 * size**power for size in sizes]
    assert exponent_at_the_end(sizes, curve) == pytest.approx(power)


def test_a_constant_does_not_hide_how_a_curve_ends() -> None:
    sizes = [100, 1000, 5000]
    quadratic = exponent_at_the_end(sizes, [30 + 9e-6 * size**2 for size in sizes])
    linear = exponent_at_the_end(sizes, [30 + 9e-6 * 5000 * size for size in sizes])
    assert quadratic > 1.1
    assert linear < 1.0


def test_each_row_of_a_growth_table_has_what_is_expected_of_it() -> None:
    lines = markdown("MB", [10, 100], {"seconds": [2.0, 20.0], "disk": [0.0, 5.0]},
                     {"seconds": "<= 1", "disk": "1"})  # fmt: skip
    assert lines[0] == "| MB | 10 | 100 | exponent at the end | expected |"
    assert lines[2:] == ["| seconds | 2 | 20 | 1.00 | <= 1 |", "| disk | 0 | 5 | nan | 1 |"]


def test_every_curve_expects_something_of_every_figure() -> None:
    assert len({tuple(one.expected) for one in CURVES.values()}) == 1
    assert CURVES["targets"].sizes[CURVES["targets"].first_place] == 3


def test_another_kind_begins_each_round_and_both_are_held_against_the_slower_one() -> None:
    kinds = ("a", "both", "b")
    orders = [in_turn(kinds, number) for number in range(4)]
    assert ["".join(order[0]) for order in orders] == ["a", "both", "b", "a"]
    assert all(sorted(order) == sorted(kinds) for order in orders)
    alone = [Build((name,), wall_s, {}, 0.0) for name, wall_s in (("a", 10.0), ("b", 20.0))]
    both = Build(("a", "b"), 24.0, {}, 0.0)
    assert ratio_of([both, *alone]) == ratio_of([alone[1], both, alone[0]]) == 1.2
