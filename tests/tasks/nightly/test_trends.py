"""The trends: versions where the alias moved, a gap where a night is missing, the same bytes."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from handoff.artifacts.night import Night, NightRow
from handoff.tasks.nightly.trends import draw_served, draw_trend, trend_name, trends
from tests.artifacts.nights import (
    FIRST,
    busy_night,
    compared,
    figures,
    month,
    night,
    unchanged,
)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """The values along each panel's line of what is served, as they are drawn."""
    drawn: list[list[float]] = []

    class Recording:
        def __init__(self, axes: Any) -> None:
            self.axes = axes

        def plot(self, xs: Any, ys: Any, **style: Any) -> Any:
            if "drawstyle" in style:
                drawn.append(list(ys))
            return self.axes.plot(xs, ys, **style)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.axes, name)

    monkeypatch.setattr(
        "handoff.tasks.nightly.trends.draw_served",
        lambda axes, *rest: draw_served(Recording(axes), *rest),
    )
    return drawn


def day_of(one: Night) -> int:
    return (datetime.fromisoformat(one.started) - FIRST).days


def words(picture: bytes) -> list[str]:
    return re.findall(r">([^<>]+)</text>", picture.decode())


def test_every_version_that_was_served_is_named_once_and_nothing_else_is() -> None:
    found = words(draw_trend("resnet18", month()))
    assert [word for word in found if re.fullmatch(r"v\d+", word)] == ["v6", "v7", "v9"]
    assert "×" in found
    assert {"made, and not served", "refused, failed or crashed", "the alias moved"} <= set(found)
    assert draw_trend("resnet18", month()) == draw_trend("resnet18", month())
    assert draw_trend("resnet18", month(), "png").startswith(b"\x89PNG")


def test_what_did_not_happen_is_not_in_the_legend() -> None:
    found = words(
        draw_trend("resnet18", [night(day, unchanged(figures(6, 1.4))) for day in (0, 1)])
    )
    assert not {"made, and not served", "refused, failed or crashed", "the alias moved"} & set(
        found
    )
    assert "cpu-avx512, served" in found


def test_a_missing_night_and_one_without_figures_are_gaps(lines: list[list[float]]) -> None:
    draw_trend("resnet18", month())
    speed, error, size, compile_s = lines
    # 28 nights, and one empty place for those that are missing.
    assert [place for place, y in enumerate(speed) if math.isnan(y)] == [9, 12]
    assert len(speed) == 29
    assert speed[:6] == [1.41] * 6
    assert speed[6:9] == [1.58] * 3
    assert speed[-1] == 1.71
    assert speed[16] == 1.58, "what was kept back is not what is served"
    assert error[0] == pytest.approx(1.12)
    assert size[0] == pytest.approx(96.1)
    assert compile_s[0] == 33.0


def test_a_night_on_which_nothing_changed_is_no_gap(lines: list[list[float]]) -> None:
    # As the nightly writes them: of what is unchanged there is the version alone.
    rows = [(one, row) for one in month() if (row := one.row("resnet18")) is not None]
    bare = [night(day_of(one), replace(row, served=())) for one, row in rows]
    draw_trend("resnet18", bare)
    speed, *_ = lines
    assert [place for place, y in enumerate(speed) if math.isnan(y)] == [9, 12]
    assert (speed[0], speed[8], speed[-1]) == (1.41, 1.58, 1.71)


def test_a_version_of_which_nothing_is_known_is_a_gap(lines: list[list[float]]) -> None:
    six, seven = figures(6, 1.4), figures(7, 1.6)
    nights = [
        night(0, NightRow("resnet18", "unchanged", old=5)),
        night(1, compared("replaced", six, seven, "better")),
        night(2, NightRow("resnet18", "unchanged", old=7)),
    ]
    draw_trend("resnet18", nights)
    assert math.isnan(lines[0][0])
    assert lines[0][1:] == [1.6, 1.6]


def test_a_weekly_run_has_no_gaps(lines: list[list[float]]) -> None:
    draw_trend("resnet18", [night(7 * week, unchanged(figures(6, 1.4))) for week in range(5)])
    assert lines[0] == [1.4] * 5


def test_nights_before_a_model_was_known_are_left_out(lines: list[list[float]]) -> None:
    picture = draw_trend("recommender", (*month(), busy_night()))
    assert [len(line) for line in lines] == [1] * 8, "two targets in four panels"
    assert "recommender, one night" in words(picture)


def test_a_model_without_figures_has_no_picture() -> None:
    nights = [night(1, NightRow("toy", "failed", why="x")), busy_night()]
    assert draw_trend("toy", nights) == b""
    assert draw_trend("unheard-of", nights) == b""
    assert {name for name, _ in trends(nights)} == {
        *(trend_name(f"model-{letter}") for letter in "abcdefgh"),
        "trend-resnet18.svg", "trend-recommender.svg",
    }  # fmt: skip
    assert list(trends(nights, ["toy"])) == []


def test_figures_that_are_lacking_leave_the_others_as_they_are(lines: list[list[float]]) -> None:
    bare = replace(figures(6, 1.4), speed=None, rmse_ratio=None, compile_s=0.0)
    assert draw_trend("resnet18", [night(0, unchanged(bare)), night(1, unchanged(bare))])
    speed, error, size, compile_s = lines
    assert all(map(math.isnan, (*speed, *error, *compile_s)))
    assert size == [pytest.approx(96.1)] * 2


def test_a_version_that_comes_back_is_marked_again() -> None:
    six, seven = figures(6, 1.4), figures(7, 1.6)
    nights = [
        night(0, unchanged(six)), night(1, compared("replaced", six, seven, "better")),
        night(2, unchanged(six)),
    ]  # fmt: skip
    found = words(draw_trend("resnet18", nights))
    assert [word for word in found if re.fullmatch(r"v\d+", word)] == ["v6", "v7", "v6"]
