"""The benchmark's interval; its timings are in test_compile.py, on a real package."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from handoff.artifacts.release.evidence import Timing
from handoff.tasks.timing.benchmark import (
    cases_with_example,
    is_enough,
    median_interval,
    retry_if_blurred,
    time_in_turns,
    timed_cases,
)
from handoff.tasks.timing.conditions import BackgroundLoad
from handoff.tasks.verify.reference import ReferenceCase, save_cases

# The ranks, from 1, of Conover's table A3 for the median at 95 %.
TABLE = {9: (2, 8), 10: (2, 9), 15: (4, 12), 20: (6, 15), 25: (8, 18)}


@pytest.mark.parametrize("count", TABLE)
def test_the_ranks_are_those_of_the_tables(count: int) -> None:
    low, high = median_interval(count)
    assert (low + 1, high + 1) == TABLE[count]


@given(st.integers(9, 300))
def test_the_interval_holds_the_median_with_at_least_95_percent_and_no_narrower_one_does(
    count: int,
) -> None:
    low, high = median_interval(count)
    assert 0 <= low < high < count
    assert low + high == count - 1

    def coverage(rank: int) -> float:
        outside = sum(math.comb(count, below) for below in range(rank + 1))
        return 1.0 - 2.0 * outside / 2.0**count

    assert coverage(low) >= 0.95
    assert coverage(low + 1) < 0.95


def test_in_95_of_100_samples_the_median_lies_within() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(4000, 9, generator=generator).exp().sort(dim=1).values
    low, high = median_interval(9)
    median = math.exp(0.5)
    within = (draws[:, low] <= median) & (median <= draws[:, high])
    assert statistics.fmean(within.tolist()) > 0.95


def ratios_within(share: float, count: int) -> list[tuple[float, float]]:
    """Return the seconds of `count` rounds whose ratios go up by `share` in all."""
    return [(1.0 + share * place / (count - 1), 0.5) for place in range(count)]


@pytest.mark.parametrize(
    ("share", "count", "passed_s", "others", "ended"),
    [
        (0.02, 6, 0.5, 0.0, True),
        (0.02, 6, 0.5, None, True),
        (0.02, 5, 0.5, 0.0, False),
        (0.02, 7, 0.5, 0.0, False),
        (0.08, 6, 0.5, 0.0, False),
        (0.02, 24, 0.5, 0.0, True),
        (0.02, 6, 0.1, 0.0, False),
        (0.02, 6, 0.5, 1.0, False),
        (0.08, 60, 0.1, 1.0, True),
        (0.08, 6, 3.5, 1.0, True),
        (0.08, 5, 3.5, 1.0, False),
    ],
)
def test_rounds_end_by_their_time_or_by_a_narrow_interval_on_a_quiet_machine(
    share: float, count: int, passed_s: float, others: float | None, ended: bool
) -> None:
    assert is_enough(ratios_within(share, count), passed_s, lambda: others) is ended


def test_an_interval_that_ends_its_rounds_holds_the_median_nearly_as_often() -> None:
    draws = torch.randn(1000, 60, generator=torch.Generator().manual_seed(0)).mul(0.02).exp()
    within, made = 0, 0
    for run in draws.tolist():
        rounds = [(ratio, 1.0) for ratio in run]
        count = next(n for n in range(1, 61) if is_enough(rounds[:n], 1.0, lambda: 0.0))
        low, high = median_interval(count)
        ordered = sorted(run[:count])
        within += ordered[low] <= 1.0 <= ordered[high]
        made += count
    assert within / len(draws) > 0.93
    assert made / len(draws) < 15


def test_seconds_lie_within_their_own_intervals() -> None:
    wide = torch.randn(200_000)
    timing = time_in_turns("wide", (wide,), lambda given: given[0].sort(), lambda given: given)
    assert 0 < timing.eager_low_s <= timing.eager_s <= timing.eager_high_s
    assert 0 < timing.package_low_s <= timing.package_s <= timing.package_high_s
    assert timing.package_high_s < timing.eager_low_s


def timed_sizes(sizes: list[int], between: int, folder: Path) -> list[int]:
    """Return the sizes that are timed of cases of these sizes, whose values are drawn."""
    cases = [
        ReferenceCase(f"x={size} seed={seed}", (torch.zeros(size),), (), ())
        for seed, size in enumerate(sizes)
    ]
    special = ReferenceCase("nan", (torch.zeros(9999),), (), (), values="nan")
    save_cases([*cases, special], folder / "reference.pt")
    chosen = timed_cases(folder / "reference.pt", between=between)
    return [case.inputs[0].numel() for case in chosen]


@pytest.mark.parametrize(
    ("sizes", "between", "timed"),
    [
        ([1, 2, 7, 17, 64], 0, [1, 64]),
        ([64, 17, 7, 2, 1], 2, [1, 7, 17, 64]),
        ([1, 2, 7, 17, 1024], 2, [1, 7, 17, 1024]),
        ([5, 5, 5], 2, [5]),
        ([0, 8], 2, [0, 8]),
        ([3, 4], 2, [3, 4]),
        ([1, 64, 64, 8, 8], 1, [1, 8, 64]),
    ],
)
def test_the_ends_are_timed_and_what_lies_evenly_between_them(
    sizes: list[int], between: int, timed: list[int], tmp_path: Path
) -> None:
    assert timed_sizes(sizes, between, tmp_path) == timed


def test_of_inputs_of_one_size_the_plan_s_first_is_timed(tmp_path: Path) -> None:
    cases = [ReferenceCase(name, (torch.zeros(4),), (), ()) for name in ("first", "second")]
    save_cases(cases, tmp_path / "reference.pt")
    assert [case.name for case in timed_cases(tmp_path / "reference.pt")] == ["first"]


@pytest.mark.parametrize(
    ("size", "timed"),
    [
        (8, ["x=1 seed=0", "x=8 example=0", "x=17 seed=0", "x=64 seed=0"]),
        (10, ["x=1 seed=0", "x=7 seed=0", "x=10 example=0", "x=17 seed=0", "x=64 seed=0"]),
        (60, ["x=1 seed=0", "x=7 seed=0", "x=17 seed=0", "x=60 example=0", "x=64 seed=0"]),
        (64, ["x=1 seed=0", "x=7 seed=0", "x=17 seed=0", "x=64 example=0"]),
    ],
)
def test_the_delivered_example_is_timed_in_its_place(size: int, timed: list[str]) -> None:
    drawn = [ReferenceCase(f"x={n} seed=0", (torch.zeros(n),), (), ()) for n in (1, 2, 7, 17, 64)]
    example = ReferenceCase(f"x={size} example=0", (torch.zeros(size),), (), ())
    assert [case.name for case in cases_with_example([*drawn, example], between=2)] == timed


def timing(low: float, high: float, others: float | None) -> Timing:
    return Timing("x=8 example=0", 1.0, 1.0, (low + high) / 2, low, high, 9, 2, others=others)


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        ([timing(1.2, 1.4, 1.5)], 0),
        ([timing(0.5, 3.0, 0.1)], 0),
        ([timing(0.5, 3.0, None)], 0),
        ([timing(0.5, 3.0, 1.5), timing(1.2, 1.3, 0.0)], 1),
        ([timing(0.5, 3.0, 1.5), timing(0.4, 9.0, 1.5)], 0),
    ],
)
def test_what_other_work_blurred_is_measured_once_more(tried: list[Timing], expected: int) -> None:
    remaining = iter(tried)
    assert retry_if_blurred(lambda: next(remaining), pause_s=0.0) is tried[expected]
    assert next(remaining, None) is None


def test_what_others_do_is_told_apart_from_what_this_process_does() -> None:
    load = BackgroundLoad()
    spin = "import time; end = time.time() + 3\nwhile time.time() < end: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as other:
        other.wait()
    # Of one processor; on a crowded machine the loop gets a part of it, and the crowd the rest.
    processors = load.processors()
    assert processors is not None
    assert processors > 0.3
    assert BackgroundLoad().processors() is None
