"""What is printed of a simulated night: its curve, and what was used in it."""

from __future__ import annotations

from collections import Counter

from tests.studies.benchmarks.night_counts import Counts
from tests.studies.benchmarks.night_curve import format_curve
from tests.studies.benchmarks.night_flow import RECORDED_S, recorded_seconds
from tests.studies.benchmarks.night_outcome import Outcome, Scenario


def outcome(models: int, **changes: float) -> Outcome:
    """Return a night that takes a second a model, and nothing beside."""
    groups = ("server", "postgres", "workers", "control")
    return Outcome(
        scenario=Scenario(models, 1, 16, threads=True), faster=20.0, ended="Completed", done=models,
        survey_s=0.5, wall_s=changes.get("wall_s", models), drain_s=models,
        cpu_s=dict.fromkeys(groups, models / 2), peak_bytes=dict.fromkeys(groups, 200_000_000),
        connections=9, load=1.0, asked_s=[0.1], waits_s=[1.0], took_s=[1.0], requests={"all": 1},
        commits=1, database_bytes=16_000_000,
    )  # fmt: skip


def test_a_night_that_takes_twice_as_long_for_twice_as_many_is_linear_and_its_memory_flat() -> None:
    lines = format_curve([outcome(50), outcome(100)], [0.25, 1.0]).splitlines()
    assert lines[0] == "| models | 50 | 100 | exponent at the end | expected |"
    assert lines[2] == "| seconds, the whole night | 50 | 100 | 1.00 | 1 |"
    assert "| models a minute | 60 | 60 | 0.00 | 0 |" in lines
    assert "| the server's largest memory, MB | 200 | 200 | 0.00 | 0 |" in lines
    assert lines[-1].endswith("each number on a new stack. Load before each: 0.2, 1.0.")


def test_the_exponent_is_that_between_the_last_two() -> None:
    nights = [outcome(10, wall_s=500), outcome(100, wall_s=100), outcome(200, wall_s=400)]
    assert format_curve(nights, [0.0]).splitlines()[2].endswith("| 500 | 100 | 400 | 2.00 | 1 |")


def test_one_night_alone_has_no_exponent_and_none_no_table() -> None:
    assert "| seconds, the whole night | 50 | - | 1 |" in format_curve([outcome(50)], [0.0])
    assert format_curve([], []) == "No night was played to its end."


def test_what_a_night_has_used_is_what_was_counted_between() -> None:
    before = Counts({"server": 4.0}, Counter({"GET /api": 3}), 10)
    after = Counts({"server": 6.5, "workers": 1.0}, Counter({"GET /api": 5}), 14)
    used = Counts({"server": 2.5, "workers": 1.0}, Counter({"GET /api": 2}), 4)
    assert after.since(before) == used


def test_a_model_of_a_night_has_the_22_tasks_of_a_rebuild_and_its_seconds() -> None:
    assert len(RECORDED_S) == 22
    assert round(recorded_seconds(), 1) == 87.2
