"""A target's numbers as tables, and a search's variants as rows and a picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from handoff.artifacts.recipe.tolerance import Tolerance, pooled_rmse
from handoff.artifacts.release.evidence import Candidate, pareto
from handoff.artifacts.release.interval import Interval, format_package_size, size
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.tasks.report.cells import Cell, Table, table
from handoff.tasks.report.error_plots import is_inside_graph, output_name
from handoff.tasks.report.pictures import FIRST, MUTED, SECOND, Picture, draw, make_logarithmic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COMPARISONS_SHOWN = 200
_OUTPUTS_SHOWN = 40


@dataclass(frozen=True)
class ToleranceNeed:
    """What tolerance one output would need on some inputs, beside what was agreed.

    `share` is how much of the agreed bound the worst element takes, in percent: over 100 it broke
    it. None where the bound is 0, or where nothing finite was compared.
    """

    output: str
    dtype: str
    agreed: Tolerance
    max_abs: float
    required_rtol: float
    rmse_package: float
    rmse_eager: float
    is_accepted: bool

    @property
    def share(self) -> float | None:
        """How much of the agreed `rtol` is needed beside the agreed `atol`, in percent."""
        if not self.agreed.rtol or not math.isfinite(self.required_rtol):
            return None
        return 100.0 * self.required_rtol / self.agreed.rtol


def tolerance_needs(
    manifest: Manifest, target: TargetRecord, *, special: bool = False
) -> list[ToleranceNeed]:
    """Return what each output needs over the ordinary inputs, or over the special ones."""
    needs = []
    compared = [d for d in target.deviations if d.special == special and not is_inside_graph(d)]
    for output in sorted({d.output for d in compared}):
        deviations = [d for d in compared if d.output == output]
        name = output_name(manifest, output)
        needs.append(
            ToleranceNeed(
                output=name,
                dtype=deviations[0].dtype,
                agreed=manifest.recipe.tolerance_for(deviations[0].dtype, name, target.slug),
                max_abs=max(d.max_abs for d in deviations),
                required_rtol=max(d.required_rtol for d in deviations),
                rmse_package=pooled_rmse((d.elements, d.rmse_package) for d in deviations) or 0.0,
                rmse_eager=pooled_rmse((d.elements, d.rmse_eager) for d in deviations) or 0.0,
                is_accepted=all(d.accepted for d in deviations),
            )
        )
    return needs[:_OUTPUTS_SHOWN]


def needs_table(manifest: Manifest, target: TargetRecord) -> Table | None:
    """Return the tolerance that each output needs on ordinary inputs, beside the agreed one."""
    rows = [
        (
            *_need_cells(need),
            f"{need.rmse_package:.2e}",
            f"{need.rmse_eager:.2e}",
            f"at most {need.agreed.rmse_factor:g} times eager's",
            _accepted_cell(need),
        )
        for need in tolerance_needs(manifest, target)
    ]
    columns = (*_NEEDED, "RMSE to float64", "eager's RMSE", "agreed RMSE", "accepted")
    return table("Ordinary inputs: tolerance needed, and agreed", columns, rows)


def special_needs_table(manifest: Manifest, target: TargetRecord) -> Table | None:
    """Return the same of special inputs: zeros, extremes, NaN, what the graph itself asks for."""
    needs = tolerance_needs(manifest, target, special=True)
    rows = [(*_need_cells(need), _accepted_cell(need)) for need in needs]
    return table("Special inputs", (*_NEEDED, "accepted"), rows)


_NEEDED = (
    "output", "dtype", "max error", "agreed atol", "needs rtol", "agreed rtol", "share of it used",
)  # fmt: skip


def _need_cells(need: ToleranceNeed) -> tuple[str | Cell, ...]:
    return (
        Cell(need.output, "code"),
        need.dtype,
        f"{need.max_abs:.2e}",
        f"{need.agreed.atol:g}",
        f"{need.required_rtol:.1e}" if need.required_rtol else "none, atol suffices",
        f"{need.agreed.rtol:g}",
        "-" if need.share is None else format_percent(need.share),
    )


def _accepted_cell(need: ToleranceNeed) -> Cell:
    return Cell("yes", "good") if need.is_accepted else Cell("no", "bad")


def format_percent(share: float) -> str:
    """Return a share in percent, with the digits that are significant."""
    if 0 < share < 0.1:
        return "<0.1 %"
    return f"{share:,.0f} %" if share >= 99.5 else f"{share:.2g} %"


def comparisons_table(manifest: Manifest, target: TargetRecord) -> Table | None:
    """Return every comparison, the refused ones first; of very many the first ones."""
    ordered = sorted(target.deviations, key=lambda one: one.accepted)[:COMPARISONS_SHOWN]
    rows = [
        (
            d.case,
            "-" if is_inside_graph(d) else Cell(output_name(manifest, d.output), "code"),
            f"{d.max_abs:.2e}",
            f"{d.rmse_package:.2e}",
            f"{d.rmse_eager:.2e}",
            f"{d.required_rtol:.1e}",
            Cell("yes", "good") if d.accepted else Cell("no", "bad"),
        )
        for d in ordered
    ]
    columns = ("input", "output", "max error", "RMSE", "eager's RMSE", "needs rtol", "accepted")
    more = len(target.deviations) - len(ordered)
    caption = f"Every comparison ({len(target.deviations)})"
    return table(caption + (f", without {more} more" if more > 0 else ""), columns, rows)


_RACED_SIZES = 3
# An error of 0 has no place on a logarithmic axis; this is below float32's last digit.
_NO_ERROR = 1e-9


def search_columns(target: TargetRecord) -> tuple[str, ...]:
    """Return the columns of `search_rows`: with the delivery's metric, where there is one."""
    return (
        "variant", "", "speed-up over plain: smallest input", "example", "largest", "max error",
        *(["metric"] if _has_metric(target) else []), "size", "compile", "why not",
    )  # fmt: skip


def _has_metric(target: TargetRecord) -> bool:
    return any(one.metric for one in target.candidates)


def search_rows(target: TargetRecord) -> list[tuple[str, ...]]:
    """Return one row for each variant that a search tried, and why it isn't the one shipped.

    The front is that of speed, error, size and compile time; ratios have their 95 % intervals.
    """
    front = pareto(target.candidates)
    shipped = target.chosen or target.candidates[0].name if target.candidates else ""
    return [
        (
            one.name,
            "shipped" if one.name == shipped else "Pareto front" if one in front else "",
            _format_ratio(one, 0),
            _format_ratio(one, 1) if len(one.ratios) == _RACED_SIZES else "-",
            _format_ratio(one, -1),
            f"{one.max_abs:.2g}" if one.compile_s else "-",
            *([one.metric.brief if one.metric else "-"] if _has_metric(target) else []),
            format_package_size(one.size_bytes),
            f"{one.compile_s:.1f} s" if one.compile_s else "-",
            "" if one.name == shipped else "; ".join(one.reasons)[:160] or _reason_not_shipped(one),
        )
        for one in target.candidates
    ]


def _reason_not_shipped(candidate: Candidate) -> str:
    """Return why a variant that nothing is wrong with isn't shipped."""
    if not candidate.ratios:
        return "not timed"
    if any(high < 1.0 for high in candidate.ratios_high):
        return "slower than plain"
    return "another is faster" if candidate.is_faster() else "not significantly faster than plain"


def _format_ratio(candidate: Candidate, index: int) -> str:
    if not candidate.ratios:
        return "-"
    return Interval(
        candidate.ratios[index], candidate.ratios_low[index], candidate.ratios_high[index]
    ).text


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
            _paint_variant(axes, one, target.chosen, on_front=one in front)
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

    speeds = ", ".join(f"{one.name} {one.speed():.2f} times as fast" for one in timed)
    return draw(
        name, (7.9, 4.2), paint,
        caption="What was tried: speed against error, size as area, 95 % intervals. Blue: nothing "
        "else is better in speed, error, size and compile time; orange: shipped.",
        text=f"Variants of {target.slug}: {speeds}; shipped is {target.chosen or 'the plain one'}.",
    )  # fmt: skip


def _paint_variant(axes: Axes, candidate: Candidate, chosen: str, *, on_front: bool) -> None:
    color = SECOND if candidate.name == chosen else FIRST if on_front else MUTED
    x = max(candidate.max_abs, _NO_ERROR)
    low, high = min(candidate.ratios_low), max(candidate.ratios_high)
    axes.plot([x, x], [low, high], color=color, linewidth=1.2, zorder=2)
    axes.scatter(x, candidate.speed(), s=20 + candidate.size_bytes / 5e5, color=color, zorder=3)
    text = f"{candidate.name}\n{size(candidate.size_bytes)}, {candidate.compile_s:.0f} s"
    axes.annotate(
        text + ("\nshipped" if candidate.name == chosen else ""), (x, candidate.speed()),
        xytext=(8, 0), textcoords="offset points", fontsize=8, va="center",
    )  # fmt: skip
