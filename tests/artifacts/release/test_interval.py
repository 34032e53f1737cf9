"""A figure is told with its interval, in two decimals, with the same words everywhere."""

from __future__ import annotations

from handoff.artifacts.delivery.captures import CaptureRow
from handoff.artifacts.release.comparison import SideBySide
from handoff.artifacts.release.evidence import ServedTiming, Timing
from handoff.artifacts.release.interval import Interval


def test_a_figure_is_told_before_its_interval() -> None:
    assert str(Interval(1.234, 1.2, 1.3)) == "1.23 (1.20 to 1.30)"
    assert Interval(1.234, 1.2, 1.3).span == "1.20 to 1.30"


def test_records_tell_their_speed_with_the_median_first() -> None:
    told = "1.23 (1.20 to 1.30)"
    assert str(Timing("case", 2.0, 1.0, 1.234, 1.2, 1.3, 9, 1).over_eager) == told
    assert str(ServedTiming("cpu", "case", 1.234, 1.2, 1.3).over_eager) == told
    row = CaptureRow("torch.export", True, speedup=1.234, speedup_low=1.2, speedup_high=1.3)
    assert told in row.cells


def test_two_packages_side_by_side_are_told_with_their_interval() -> None:
    beside = str(SideBySide("cpu", "x: 1", 1.234, 1.2, 1.3, 4))
    assert beside == (
        "cpu: 1.23 times as fast as what it replaces (1.20 to 1.30), in turns on x: 1, 4 threads"
    )
