"""Trends: how a model's served packages went over the nights, as one picture a model."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Literal

from handoff.artifacts.night import ALARMING, QUIET, Night, NightRow
from handoff.artifacts.release.comparison import PackageFigures

# Okabe and Ito's colours, which people who don't tell red from green can tell apart.
_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_NEUTRAL_COLOR, _ALARM_COLOR = "#8a9299", "#b3261e"


@dataclass(frozen=True)
class Panel:
    """One of the pictures below each other: its title, and what it shows of a package."""

    title: str
    value: Callable[[PackageFigures], float | None]
    interval: Callable[[PackageFigures], tuple[float, float] | None] = lambda _: None
    reference: float | None = None


PANELS = (
    Panel(
        "speed, times eager's",
        lambda one: one.speed.value if one.speed else None,
        lambda one: (one.speed.low, one.speed.high) if one.speed else None,
        1.0,
    ),
    Panel("error to float64, times eager's", lambda one: one.rmse_ratio, reference=1.0),
    Panel("size, MB", lambda one: one.size_bytes / 1e6),
    Panel("compiled in, s", lambda one: one.compiled_s),
)


@dataclass(frozen=True)
class Point:
    """A night as the picture has it: when, and the model's row in it."""

    at: datetime
    row: NightRow | None


def colors_of(targets: Sequence[str]) -> list[str]:
    """Return a colour for each target; the first ones again where there are many."""
    return [_COLORS[index % len(_COLORS)] for index, _ in enumerate(targets)]


def draw_served(
    axes: Any, panel: Panel, points: Sequence[Point], target: str, color: str  # noqa: ANN401
) -> None:  # fmt: skip
    """Draw what was served: a line with gaps, filled points where it was measured that night."""
    xs = [point.at for point in points]
    served = [_served_figures(point, target) for point in points]
    ys = [None if figures is None else panel.value(figures) for figures in served]
    axes.plot(
        xs,
        [float("nan") if y is None else y for y in ys],
        color=color,
        linewidth=1.3,
        zorder=3,
        drawstyle="steps-post",
    )
    for x, y, figures in zip(xs, ys, served, strict=True):
        if y is None or figures is None:
            continue
        if bounds := panel.interval(figures):
            axes.plot([x, x], bounds, color=color, linewidth=3.5, alpha=0.3, zorder=2,
                      solid_capstyle="butt")  # fmt: skip
        size = 18 if figures.basis == "measured" else 7
        axes.scatter([x], [y], s=size, color=color, zorder=4)


def draw_unserved(
    axes: Any, panel: Panel, points: Sequence[Point], target: str, color: str  # noqa: ANN401
) -> None:  # fmt: skip
    """Draw what was made and not served: hollow, with its interval."""
    for point in points:
        if point.row is None or point.row.outcome != "kept":
            continue
        for one in point.row.comparisons:
            y = panel.value(one.new)
            if one.target != target or y is None:
                continue
            if bounds := panel.interval(one.new):
                axes.plot([point.at, point.at], bounds, color=color, linewidth=1, zorder=2)
            axes.scatter([point.at], [y], s=30, marker="D", facecolor="white", edgecolor=color,
                         zorder=4)  # fmt: skip


def _served_figures(point: Point, target: str) -> PackageFigures | None:
    if point.row is None:
        return None
    return next((one for one in point.row.served_figures if one.target == target), None)


def format_axes(axes: Any, panel: Panel) -> None:  # noqa: ANN401 - matplotlib's axes
    """Write the panel's title, and set its axis so that small changes look small."""
    axes.set_title(panel.title, loc="left", fontsize=8.5, color="#3c464d", pad=3)
    if panel.reference is not None:
        axes.axhline(panel.reference, color=_NEUTRAL_COLOR, linewidth=0.8, linestyle=":", zorder=1)
    low, high = axes.get_ylim()
    middle = (low + high) / 2
    # What hardly changed is not drawn as if it had: the axis spans a fifth of the value at least.
    half = max((high - low) / 2 * 1.1, abs(middle) * 0.1)
    axes.set_ylim(max(0.0, middle - half), middle + half)
    axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    axes.locator_params(axis="y", nbins=4)
    axes.grid(axis="y", color="#e4e8eb", linewidth=0.7, zorder=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color(_NEUTRAL_COLOR)
    axes.spines["bottom"].set_color(_NEUTRAL_COLOR)


def mark_nights(panels: Sequence[Any], points: Sequence[Point]) -> None:
    """Write each version where the alias moved to it, and a cross where a night went wrong."""
    shown: int | None = None
    for point in points:
        if point.row is None:
            continue
        version = point.row.served_version
        if version is not None and version != shown:
            _mark_version(panels, point.at, version, is_first=shown is None)
            shown = version
        if point.row.outcome in ALARMING:
            panels[0].annotate(
                "×", (point.at, 0), xycoords=("data", "axes fraction"), ha="center", va="center",
                color=_ALARM_COLOR, fontsize=13, fontweight="bold", annotation_clip=False,
            )  # fmt: skip


def _mark_version(panels: Sequence[Any], at: datetime, version: int, *, is_first: bool) -> None:
    panels[0].annotate(
        f"v{version}", (at, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 14),
        textcoords="offset points", ha="center", fontsize=8.5, fontweight="bold", color="#1f272d",
        annotation_clip=False,
    )  # fmt: skip
    if not is_first:
        for axes in panels:
            axes.axvline(at, color=_NEUTRAL_COLOR, linewidth=0.9, linestyle="--", zorder=1)


def set_dates(axes: Any, points: Sequence[Point]) -> None:  # noqa: ANN401 - matplotlib's axes
    """Write as many dates as there is room for."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=3, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)
    first, last = points[0].at, points[-1].at
    # A few nights alone stand among their days, not among years.
    room = max((last - first) * 0.03, timedelta(hours=18))
    axes.set_xlim(first - room, last + room)


def add_legend(figure: Any, targets: Sequence[str], points: Sequence[Point]) -> None:  # noqa: ANN401
    """Say below the panels what the marks stand for, those that there are."""
    from matplotlib.lines import Line2D

    entries = [
        Line2D(
            [], [], color=color, marker="o", markersize=4, linewidth=1.3, label=f"{target}, served"
        )
        for color, target in zip(colors_of(targets), targets, strict=True)
    ]
    versions = {point.row.served_version for point in points if point.row is not None}
    if len(versions - {None}) > 1:
        entries.append(
            Line2D(
                [], [], color=_NEUTRAL_COLOR, linewidth=0.9, linestyle="--", label="the alias moved"
            )
        )
    outcomes = {point.row.outcome for point in points if point.row is not None}
    if "kept" in outcomes:
        entries.append(
            Line2D([], [], color=_NEUTRAL_COLOR, marker="D", markerfacecolor="white", markersize=5,
                   linewidth=0, label="made, and not served")
        )  # fmt: skip
    if outcomes & ALARMING:
        entries.append(
            Line2D([], [], color=_ALARM_COLOR, marker="x", markersize=5, linewidth=0,
                   label="refused, failed or crashed")
        )  # fmt: skip
    figure.legend(handles=entries, loc="outside lower left", ncols=4, frameon=False, fontsize=8.5)


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
    targets = _target_slugs(points)
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
            format_axes(axes, panel)
        mark_nights(panels, points)
        set_dates(panels[-1], points)
        count = sum(point.row is not None for point in points)
        title = f"{model}, {count} nights" if count > 1 else f"{model}, one night"
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
        add_legend(figure, targets, points)
        buffer = io.BytesIO()
        metadata = {"Date": None} if form == "svg" else {}
        figure.savefig(buffer, format=form, metadata=metadata, dpi=110)
    return buffer.getvalue()


def _points(model: str, nights: Sequence[Night]) -> list[Point]:
    """Return the nights since the model's first, and an empty one in each pause too long."""
    ordered = sorted(nights, key=lambda night: datetime.fromisoformat(night.started))
    rows = _fill_unchanged([night.row(model) for night in ordered])
    points = [Point(_utc_start(night), row) for night, row in zip(ordered, rows, strict=True)]
    pauses = [(b.at - a.at) for a, b in pairwise(points)]
    usual = sorted(pauses)[len(pauses) // 2] if pauses else None
    padded: list[Point] = []
    for point in points:
        if padded and usual is not None and point.at - padded[-1].at > usual * _GAP:
            padded.append(Point(padded[-1].at + usual, None))
        padded.append(point)
    indices = [index for index, point in enumerate(padded) if point.row is not None]
    return padded[indices[0] :] if indices else []


def _utc_start(night: Night) -> datetime:
    """Return when a night began, in UTC and as matplotlib takes it."""
    return datetime.fromisoformat(night.started).astimezone(UTC).replace(tzinfo=None)


def _fill_unchanged(rows: Sequence[NightRow | None]) -> list[NightRow | None]:
    """Return the rows, with the figures of what is served where nothing has changed about it.

    They are those that the nearest earlier night has of the same version, else a later one.
    """
    known: dict[tuple[int, str], PackageFigures] = {}
    for row in reversed(rows):
        known |= _figures_by_version(row)
    filled = []
    for row in rows:
        known |= _figures_by_version(row)
        if row is None or row.outcome not in QUIET or row.served_figures:
            filled.append(row)
            continue
        served = (one for (version, _), one in known.items() if version == row.served_version)
        filled.append(replace(row, served=tuple(replace(one, basis="recorded") for one in served)))
    return filled


def _figures_by_version(row: NightRow | None) -> dict[tuple[int, str], PackageFigures]:
    if row is None:
        return {}
    both = (figures for one in row.comparisons for figures in (one.old, one.new))
    return {(one.version, one.target): one for one in (*both, *row.served)}


def _target_slugs(points: Sequence[Point]) -> list[str]:
    slugs = {
        figures.target
        for point in points
        if point.row is not None
        for figures in (*point.row.served_figures, *(c.new for c in point.row.comparisons))
    }
    return sorted(slugs)
