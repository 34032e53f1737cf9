"""A figure is shown with its interval, in two decimals, with the same words everywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from handoff.artifacts.delivery.captures import CaptureRow
from handoff.artifacts.release.comparison import SideBySide
from handoff.artifacts.release.difference import differences
from handoff.artifacts.release.evidence import ServedTiming, Timing, why_unknown
from handoff.artifacts.release.interval import Interval
from handoff.tasks.report.view import targets_table
from tests.artifacts.samples import sample_manifest, sample_target


def test_a_figure_is_told_before_its_interval() -> None:
    assert str(Interval(1.234, 1.2, 1.3)) == "1.23 (1.20 to 1.30)"
    assert Interval(1.234, 1.2, 1.3).span == "1.20 to 1.30"


def test_records_tell_their_speed_with_the_median_first() -> None:
    text = "1.23 (1.20 to 1.30)"
    assert str(Timing("case", 2.0, 1.0, 1.234, 1.2, 1.3, 9, 1).over_eager) == text
    assert str(ServedTiming("cpu", "case", 1.234, 1.2, 1.3).over_eager) == text
    row = CaptureRow("torch.export", True, speedup=1.234, speedup_low=1.2, speedup_high=1.3)
    assert text in row.cells


def test_two_packages_side_by_side_are_told_with_their_interval() -> None:
    beside = str(SideBySide("cpu", "x: 1", 1.234, 1.2, 1.3, 4))
    assert beside == (
        "cpu: 1.23 times as fast as what it replaces (1.20 to 1.30), in turns on x: 1, 4 threads"
    )
    unknown = str(SideBySide("cpu", "x: 1", 1.1, 0.7, 1.5, 4))
    assert unknown == (
        "cpu: whether it is faster than what it replaces is not known (0.70 to 1.50), "
        "in turns on x: 1, 4 threads"
    )
    # How much slower it is no more than a bound tells, and that it is slower every bit of it.
    surely = str(SideBySide("cpu", "x: 1", 0.002, 0.001, 0.0025, 4))
    assert surely == (
        "cpu: 0.001 to 0.0025 times as fast as what it replaces, in turns on x: 1, 4 threads"
    )


@pytest.mark.parametrize("others", [None, 1.6])
@pytest.mark.parametrize("span", [(0.7, 1.5), (1.01, 1.3), (2.0, 5.0)])
def test_every_place_tells_the_same_of_a_speed(
    others: float | None, span: tuple[float, float]
) -> None:
    timing = Timing("batch=8 example=0", 2.0, 1.0, 1.2, *span, 9, 2, others=others)
    target = replace(sample_target("cpu-avx2"), timings=(timing,))
    before, after = sample_manifest(sample_target("cpu-avx2")), sample_manifest(target)
    (speed,) = (one.after for one in differences(before, after) if timing.case in one.name)
    blurred = timing.over_eager.is_blurred
    served = ServedTiming("cpu-avx2", timing.case, 1.2, *span, is_blurred=blurred)
    assert {speed, served.over_eager.text} == {timing.over_eager.text}
    table = targets_table(after)
    assert table is not None
    assert timing.over_eager.text in [cell.text for cell in table.rows[0]]


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((1.23, 1.2, 1.3), "1.23 (1.20 to 1.30)"),
        ((0.5, 0.4, 0.6), "0.50 (0.40 to 0.60)"),
        ((1.01, 0.95, 1.05), "1.01 (0.95 to 1.05)"),
        ((1.45, 0.2, 100.0), "not known (0.20 to 100)"),
        ((1.1, 0.8, 1.4), "not known (0.80 to 1.40)"),
        ((5.0, 3.0, 7.0), "not known (3.00 to 7.00)"),
        ((47131.92, 40000.0, 50000.0), "47,132 (40,000 to 50,000)"),
        ((0.0123, 0.011, 0.013), "0.012 (0.011 to 0.013)"),
    ],
)
def test_what_can_not_be_acted_on_is_told_as_not_known(
    interval: tuple[float, float, float], text: str
) -> None:
    assert Interval(*interval).text == text


def test_an_unknown_speed_says_why_and_what_to_do() -> None:
    quiet = Timing("batch=8 example=0", 2.0, 1.0, 1.1, 0.5, 1.9, 9, 2, others=0.1)
    assert "calls differ from each other" in why_unknown([quiet])
    busy = replace(quiet, others=1.6)
    assert "other work took 1.6 processors" in why_unknown([busy])
    assert "--rebuild on a quiet machine" in why_unknown([busy])
    known = replace(busy, speedup_low=1.05, speedup_high=1.2)
    assert why_unknown([known]) == ""
    at_both = why_unknown([quiet, known, replace(busy, case="batch=1 seed=0")])
    assert "batch=8 example=0 (0.50 to 1.90 times eager's speed), batch=1 seed=0" in at_both


def test_beside_other_work_a_narrow_interval_counts_and_a_wide_one_does_not() -> None:
    """A package was once measured at 0.023 times eager's speed (0.015 to 0.03), and is faster."""
    assert Interval(0.023, 0.015, 0.03).is_known
    assert not Interval(0.023, 0.015, 0.03, is_blurred=True).is_known
    assert Interval(2.04, 2.01, 2.08, is_blurred=True).is_known
