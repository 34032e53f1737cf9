"""What a race holds to: turns, repeats beside other work, outputs that are the model's."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.studies.benchmarks.failures import NotMadeError, describe_failure
from tests.studies.benchmarks.served.racer import difference
from tests.studies.benchmarks.served.turns import Race, Ratio, TimedCall, hold_quietly, run_in_turns


def test_every_competitor_has_its_turn_in_every_round_and_who_begins_changes() -> None:
    called: list[str] = []

    def turn_of(name: str) -> Callable[[], float]:
        def turn() -> float:
            called.append(name)
            return 1.0

        return turn

    race = run_in_turns({name: turn_of(name) for name in "abc"}, rounds=12, budget_s=60.0)
    assert {name: len(own) for name, own in race.seconds.items()} == {"a": 12, "b": 12, "c": 12}
    rounds = ["".join(called[at : at + 3]) for at in range(0, 36, 3)]
    assert rounds[:4] == ["abc", "bca", "cab", "abc"]


def test_a_ratio_is_the_median_of_the_rounds_own() -> None:
    race = Race({"slow": [2.0, 40.0, 6.0], "fast": [1.0, 10.0, 2.0]}, others=0.0)
    assert race.ratio("slow", "fast") == Ratio(3.0, 2.0, 4.0)


def test_a_difference_is_told_where_every_race_has_seen_it() -> None:
    # However much a race's own rounds differ.
    clear, wide, slower = Ratio(2.0, 1.9, 2.1), Ratio(1.2, 0.7, 1.9), Ratio(0.9, 0.8, 0.95)
    assert Ratio.across([clear, wide, clear]) == Ratio(2.0, 1.2, 2.0)
    assert Ratio.across([clear, wide, clear]).is_significant
    assert not Ratio.across([wide, slower]).is_significant


def test_a_race_beside_other_work_is_held_again_and_the_quietest_count() -> None:
    others = iter([0.0, 0.5, 0.02, 0.3, 0.01])
    finished = hold_quietly(lambda: Race({}, next(others)), 3)
    assert [race.others for race in finished] == [0.0, 0.01, 0.02]
    assert next(others, None) is None


def test_a_machine_that_is_never_quiet_has_each_race_held_three_times() -> None:
    others = iter(range(1, 100))
    assert [race.others for race in hold_quietly(lambda: Race({}, next(others)), 2)] == [1, 2]
    assert next(others) == 7


def test_how_often_a_turn_calls_is_found_in_the_first_turn() -> None:
    calls: list[int] = []
    timed = TimedCall(lambda: calls.append(1))
    assert len(calls) == 3
    timed.turn()
    # One untimed, three to find it, and those of the turn.
    in_a_turn = len(calls) - 3 - 1 - 3
    assert in_a_turn > 1
    calls.clear()
    timed.turn()
    assert len(calls) == 1 + in_a_turn


def test_outputs_of_another_number_or_shape_are_not_the_models() -> None:
    one, two = torch.ones(2, 3), torch.ones(3)
    assert difference((one, two), (one, two)) == 0.0
    with pytest.raises(NotMadeError, match="its outputs are of the shapes"):
        difference((one,), (one, two))
    with pytest.raises(NotMadeError, match="its outputs are of the shapes"):
        difference((one, torch.ones(3, 1)), (one, two))


@pytest.mark.parametrize(
    ("got", "want", "error"),
    [
        ([1.0, 2.0], [1.0, 1.0], 1.0),
        ([math.nan, 2.0], [math.nan, 2.0], 0.0),
        ([math.inf, -math.inf, 2.0], [math.inf, -math.inf, 1.0], 1.0),
        ([math.nan, 2.0], [1.0, 2.0], math.inf),
        ([1.0, 2.0], [math.nan, 2.0], math.inf),
        ([math.inf, 2.0], [math.nan, 2.0], math.inf),
        ([math.inf, 2.0], [-math.inf, 2.0], math.inf),
        ([], [], 0.0),
        ([0.5], [0.0], 0.5),
    ],
)
def test_nan_and_infinities_are_compared_and_never_forgiven(
    got: list[float], want: list[float], error: float
) -> None:
    assert difference((torch.tensor(got),), (torch.tensor(want),)) == pytest.approx(error)


def test_a_failure_is_told_by_the_lines_that_say_something() -> None:
    # As OpenVINO's begin.
    text = "Exception from src/inference/src/cpp/core.cpp:132:\nFrontEnd failed.\n\nNo GRU\n"
    assert describe_failure(RuntimeError(text)) == "RuntimeError: FrontEnd failed. No GRU"
    assert describe_failure(NotMadeError("it is no model")) == "it is no model"
    assert len(describe_failure(ValueError("x" * 1000))) == 300
