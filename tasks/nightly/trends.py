"""Trends: how a model's served packages went over the nights, as one picture a model."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

from handoff.artifacts.nightly.night import QUIET, Night, NightRow
from handoff.artifacts.release.comparison import PackageFigures
from handoff.tasks.nightly.trend_drawing import (
    PANELS,
    Point,
    add_legend,
    colors_of,
    draw_served,
    draw_unserved,
    finish,
    mark_nights,
    set_dates,
)

# A night is missing where the pause is so many times the usual one.
_GAP = 1.6


def trend_name(model: str) -> str:
    """Return the file name of a model's trend."""
    return f"trend-{model}.svg"


def trends(nights: Sequence[Night], models: Iterable[str] | None = None) -> Iterator[
    tuple[str, bytes]
]:  # fmt: skip
    """Give each model's file name and SVG, for those of `models` (None: all) with any figures."""
    known = sorted({row.model for night in nights for row in night.rows})
    for model in known if models is None else models:
        if drawn := draw_trend(model, nights):
            yield trend_name(model), drawn


def draw_trend(model: str, nights: Sequence[Night], form: Literal["svg", "png"] = "svg") -> bytes:
    """Return a model's trend; empty where no night has figures of it.

    Speed over eager with its interval, error, size and compile time lie below each other. What is
    served is joined; nothing is joined over a night that is missing, or has no figures. What was
    made and not served is hollow, a version stands where the alias moved to it, and a cross where
    the model was refused, failed or crashed.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    points = _points(model, nights)
    targets = _targets(points)
    if not targets:
        return b""
    # The same bytes for the same nights, and text that a reader can select.
    with mpl.rc_context({"svg.hashsalt": "handoff", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(8.0, 7.2), layout="constrained")
        panels = figure.subplots(len(PANELS), 1, sharex=True)
        for axes, panel in zip(panels, PANELS, strict=True):
            for color, target in zip(colors_of(targets), targets, strict=True):
                draw_served(axes, panel, points, target, color)
                draw_unserved(axes, panel, points, target, color)
            finish(axes, panel)
        mark_nights(panels, points)
        set_dates(panels[-1], points)
        count = sum(point.row is not None for point in points)
        title = f"{model}, {count} nights" if count > 1 else f"{model}, one night"
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        add_legend(figure, targets, points)
        written = io.BytesIO()
        metadata = {"Date": None} if form == "svg" else {}
        figure.savefig(written, format=form, metadata=metadata, dpi=110)
    return written.getvalue()


def _points(model: str, nights: Sequence[Night]) -> list[Point]:
    """Return the nights since the model's first, and an empty one in each pause too long."""
    ordered = sorted(nights, key=lambda night: datetime.fromisoformat(night.started))
    rows = _filled([night.row(model) for night in ordered])
    found = [Point(_moment(night), row) for night, row in zip(ordered, rows, strict=True)]
    pauses = [(b.at - a.at) for a, b in pairwise(found)]
    usual = sorted(pauses)[len(pauses) // 2] if pauses else None
    whole: list[Point] = []
    for point in found:
        if whole and usual is not None and point.at - whole[-1].at > usual * _GAP:
            whole.append(Point(whole[-1].at + usual, None))
        whole.append(point)
    known = [place for place, point in enumerate(whole) if point.row is not None]
    return whole[known[0] :] if known else []


def _moment(night: Night) -> datetime:
    """Return when a night began, in UTC and as matplotlib takes it."""
    return datetime.fromisoformat(night.started).astimezone(UTC).replace(tzinfo=None)


def _filled(rows: Sequence[NightRow | None]) -> list[NightRow | None]:
    """Return the rows, with the figures of what is served where nothing has changed about it.

    They are those that the nearest earlier night has of the same version, else a later one.
    """
    known: dict[tuple[int, str], PackageFigures] = {}
    for row in reversed(rows):
        known |= _figures_in(row)
    filled = []
    for row in rows:
        known |= _figures_in(row)
        if row is None or row.outcome not in QUIET or row.served_figures:
            filled.append(row)
            continue
        served = (one for (version, _), one in known.items() if version == row.served_version)
        filled.append(replace(row, served=tuple(replace(one, basis="recorded") for one in served)))
    return filled


def _figures_in(row: NightRow | None) -> dict[tuple[int, str], PackageFigures]:
    if row is None:
        return {}
    both = (figures for one in row.comparisons for figures in (one.old, one.new))
    return {(one.version, one.target): one for one in (*both, *row.served)}


def _targets(points: Sequence[Point]) -> list[str]:
    slugs = {
        figures.target
        for point in points
        if point.row is not None
        for figures in (*point.row.served_figures, *(c.new for c in point.row.comparisons))
    }
    return sorted(slugs)
