"""A search's variants: as rows, and as a picture of speed against error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handoff.artifacts.release.evidence import Candidate, pareto
from handoff.artifacts.release.interval import Interval
from handoff.artifacts.release.manifest import TargetRecord
from handoff.tasks.report.pictures import FIRST, MUTED, SECOND, Picture, draw, make_logarithmic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_RACED = 3
# An error of 0 has no place on a logarithmic axis; this is below float32's last digit.
_NO_ERROR = 1e-9


def search_columns(target: TargetRecord) -> tuple[str, ...]:
    """Return the columns of `search_rows`: with the delivery's metric, where there is one."""
    return (
        "variant", "", "x plain: smallest input", "example", "largest", "max error",
        *(["metric"] if _has_metric(target) else []), "size", "compile", "why not",
    )  # fmt: skip


def _has_metric(target: TargetRecord) -> bool:
    return any(one.metric for one in target.candidates)


def search_rows(target: TargetRecord) -> list[tuple[str, ...]]:
    """Return one row for each variant that a search tried; `*` marks the Pareto front.

    The front is that of speed, error, size and compile time; ratios have their 95 % intervals.
    """
    front = pareto(target.candidates)
    return [
        (
            one.name,
            "shipped" if one.name == target.chosen else "*" if one in front else "",
            _ratio(one, 0),
            _ratio(one, 1) if len(one.ratios) == _RACED else "-",
            _ratio(one, -1),
            f"{one.max_abs:.2g}" if one.compile_s else "-",
            *([one.metric.brief if one.metric else "-"] if _has_metric(target) else []),
            f"{one.size_bytes / 1e6:.1f} MB" if one.size_bytes else "-",
            f"{one.compile_s:.1f} s" if one.compile_s else "-",
            "; ".join(one.reasons)[:160],
        )
        for one in target.candidates
    ]


def _ratio(one: Candidate, place: int) -> str:
    if not one.ratios:
        return "-"
    return str(Interval(one.ratios[place], one.ratios_low[place], one.ratios_high[place]))


def draw_search(name: str, target: TargetRecord) -> Picture | None:
    """Return the variants: speed against error, size as area, the Pareto front in colour.

    Speed is the geometric mean of the plain package's time by the variant's, with a bar over the
    95 % intervals; error is the largest to eager. Beside each: its size and its compile seconds.
    None where no more than the plain package was timed.
    """
    timed = [one for one in target.candidates if one.ratios]
    if len(timed) < 2:
        return None
    front = pareto(target.candidates)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for one in timed:
            _draw(axes, one, target.chosen, on_front=one in front)
        ordered = sorted(
            (one for one in timed if one in front), key=lambda one: (one.max_abs, one.speed())
        )
        points = [(max(one.max_abs, _NO_ERROR), one.speed()) for one in ordered]
        axes.plot(*zip(*points, strict=True), color=FIRST, linewidth=0.8, alpha=0.5, zorder=1)
        axes.axhline(1.0, color=MUTED, linewidth=0.8, linestyle=":")
        make_logarithmic(axes)
        axes.margins(x=0.3, y=0.25)
        axes.set_xlabel("largest error to eager")
        axes.set_ylabel("times as fast as the plain package")

    told = ", ".join(f"{one.name} {one.speed():.2f} times as fast" for one in timed)
    return draw(
        name, (7.9, 4.2), paint,
        caption="What was tried: speed against error, size as area, 95 % intervals. Blue: nothing "
        "else is better in speed, error, size and compile time; orange: shipped.",
        text=f"Variants of {target.slug}: {told}; shipped is {target.chosen or 'the plain one'}.",
    )  # fmt: skip


def _draw(axes: Axes, one: Candidate, chosen: str, *, on_front: bool) -> None:
    color = SECOND if one.name == chosen else FIRST if on_front else MUTED
    x = max(one.max_abs, _NO_ERROR)
    low, high = min(one.ratios_low), max(one.ratios_high)
    axes.plot([x, x], [low, high], color=color, linewidth=1.2, zorder=2)
    axes.scatter(x, one.speed(), s=20 + one.size_bytes / 5e5, color=color, zorder=3)
    text = f"{one.name}\n{one.size_bytes / 1e6:.1f} MB, {one.compile_s:.0f} s"
    axes.annotate(
        text + ("\nshipped" if one.name == chosen else ""), (x, one.speed()), xytext=(8, 0),
        textcoords="offset points", fontsize=8, va="center",
    )  # fmt: skip
