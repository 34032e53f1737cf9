"""What the benchmark tells: ratios only beyond the noise, and verdicts that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.growth import exponent
from tests.benchmarks.served.__main__ import keep_standings, read_standings
from tests.benchmarks.served.build import PRECISIONS, recipe_of
from tests.benchmarks.served.race import HANDOFF
from tests.benchmarks.served.table import Standing, failures_of, table_of, verdict_of
from tests.benchmarks.served.turns import Race, Ratio, run_in_turns


def standing(name: str, **over_eager: Ratio) -> Standing:
    """Return a model's standing, Handoff's ratios to others being those of the medians."""
    rivals = {one.replace("_", " "): ratio for one, ratio in over_eager.items()}
    ours = rivals.get(HANDOFF)
    against = {
        rival: Ratio(ours.value / ratio.value, ours.low / ratio.high, ours.high / ratio.low)
        for rival, ratio in {"eager": Ratio(1.0, 1.0, 1.0), **rivals}.items()
        if ours and rival != HANDOFF
    }
    return Standing(
        name=name, kind="vision", day="2026-11-23", batch=4, rounds=20, chosen="freezing",
        eager_ms=10.0,
        over_eager=rivals, handoff_over=against, error={}, allowed=0.01, failed={},
        others=0.0, load=0.0,
    )  # fmt: skip


CLEAR, EVEN = Ratio(2.0, 1.9, 2.1), Ratio(1.01, 0.97, 1.05)


def test_a_difference_within_the_noise_is_no_ratio() -> None:
    assert str(CLEAR) == "2.00 (1.90 to 2.10)"
    assert str(EVEN) == "no difference (0.97 to 1.05)"
    (row,) = table_of([standing("even", Handoff=EVEN)])[2:-1]
    assert row.split("|")[4].strip() == "="


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
    wide, slower = Ratio(1.2, 0.7, 1.9), Ratio(0.9, 0.8, 0.95)
    assert Ratio.across([CLEAR, wide, CLEAR]) == Ratio(2.0, 1.2, 2.0)
    assert Ratio.across([CLEAR, wide, CLEAR]).is_told
    assert not Ratio.across([wide, slower]).is_told


def test_the_verdict_counts_who_is_slower_for_sure() -> None:
    wins = standing("wins", Handoff=Ratio(3.0, 2.9, 3.1), OpenVINO=CLEAR)
    even = standing("even", Handoff=CLEAR, OpenVINO=CLEAR)
    loses = standing("loses", Handoff=Ratio(0.5, 0.4, 0.6), OpenVINO=CLEAR)
    against_best, below_eager = verdict_of([wins, even, loses])
    assert "2 of 3 models (faster for sure: 1; no difference larger than the noise: 1)" in (
        against_best
    )
    assert against_best.endswith("Slower for sure: loses.")
    assert below_eager == "Slower than eager for sure: loses."


def test_a_model_that_nothing_speeds_up_is_held_against_eager() -> None:
    slower = Ratio(0.5, 0.4, 0.6)
    alone = standing("alone", Handoff=EVEN, OpenVINO=slower)
    assert alone.best == "eager"
    assert alone.against_best == EVEN


def test_a_refused_model_counts_as_none_of_both() -> None:
    refused = standing("refused", OpenVINO=CLEAR)
    assert "0 of 1 models" in verdict_of([refused])[0]


def test_who_is_wrong_is_told_and_is_nobodys_best() -> None:
    one = replace(standing("one", Handoff=CLEAR, OpenVINO=Ratio(9.0, 8.9, 9.1)),
                  error={"OpenVINO": 0.5, "Handoff": 1e-6})  # fmt: skip
    assert one.best == "eager"
    (row,) = table_of([one])[2:-1]
    assert row.split("|")[4].strip() == "wrong"
    assert failures_of([one]) == ["- one, OpenVINO: wrong by 0.5 times the RMS of eager's outputs"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_has_a_recipe_and_some_models_their_own(precision: str) -> None:
    usual = recipe_of("resnet18", precision)
    assert usual.search.goal == "example"
    assert recipe_of("bert", precision) == usual
    own = recipe_of("unet_resnet18", "float32")
    assert own.tolerance_for("float32").rmse_factor == 3.0


@pytest.mark.parametrize(("power", "sizes"), [(0.0, [10, 100]), (1.0, [1, 7, 50]), (2.0, [3, 9])])
def test_the_exponent_of_a_curve_is_that_of_its_power(power: float, sizes: list[int]) -> None:
    assert exponent(sizes, [2.5 * size**power for size in sizes]) == pytest.approx(power)


def test_what_was_measured_is_read_back_as_it_was(tmp_path: Path) -> None:
    wins = standing("wins", Handoff=CLEAR, OpenVINO=EVEN)
    lone = replace(standing("lone"), failed={"OpenVINO": "no"}, error={"eager": 0.0})
    keep_standings([wins, lone], tmp_path / "standings.json")
    assert read_standings(tmp_path / "standings.json") == {"wins": wins, "lone": lone}
