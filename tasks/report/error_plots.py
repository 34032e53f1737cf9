"""Pictures of a target: how its errors lie, by magnitude and by input, and its latency."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from handoff.artifacts.recipe.tolerance import LOWEST_BIN, Deviation, ErrorSpread, Tolerance
from handoff.artifacts.release.evidence import Timing
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.tasks.report.pictures import (
    FAINT,
    FIRST,
    INK,
    MUTED,
    SECOND,
    THIRD,
    Picture,
    draw,
    make_logarithmic,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INPUTS_DRAWN = 30


def draw_spread(name: str, output: str, spread: ErrorSpread, agreed: Tolerance) -> Picture:
    """Return an output's errors over all ordinary inputs: a histogram, and against magnitude."""

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.1))
        _paint_histogram(left, spread)
        _paint_magnitudes(right, spread, agreed)

    largest = max((row[1] for row in spread.apart), default=LOWEST_BIN)
    same = sum(count for _, error, count in spread.apart if error == LOWEST_BIN)
    return draw(
        name, (7.9, 3.1), paint,
        caption=f"Output {output}, {spread.elements:,} elements of all ordinary inputs. Left: "
        "distances to the same model in float64, of the package (filled) and of eager (line). "
        "Right: differences to eager against eager's own magnitude; the fuller the colour, the "
        "more elements, those without a difference in the lowest row; the line is the agreed "
        "bound, at the output's usual size.",
        text=f"Errors of output {output}: {_format_share(same, spread.elements)} of "
        f"{spread.elements:,} elements are the same as eager's, and the largest difference is "
        f"below {10 ** ((largest + 1) / 2):.1g}.",
    )  # fmt: skip


def draw_inputs(name: str, manifest: Manifest, target: TargetRecord) -> Picture | None:
    """Return how far the package lies from eager on each input: quantiles and the largest."""
    deviations = [
        d for d in target.deviations if d.figures is not None and math.isfinite(d.max_abs)
    ]
    if not deviations:
        return None
    # Those that come nearest to the bound, in the plan's order.
    worst = sorted(deviations, key=lambda d: d.max_abs, reverse=True)[:INPUTS_DRAWN]
    shown = [one for one in deviations if one in worst]
    has_several_outputs = len({one.output for one in deviations}) > 1

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        floor = 0.3 * min((q for d in shown for q in _error_sizes(d) if q > 0), default=1e-9)
        for row, deviation in enumerate(shown):
            _paint_input(axes, row, deviation, floor)
        names = [
            _label(manifest, deviation, has_several_outputs=has_several_outputs)
            for deviation in shown
        ]
        axes.set_yticks(range(len(shown)), names, fontsize=8)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        make_logarithmic(axes)
        axes.grid(axis="x")
        axes.set_xlabel("|package - eager|")

    left_out = len(deviations) - len(shown)
    top = max(shown, key=lambda d: d.max_abs)
    return draw(
        name, (7.9, 1.1 + 0.21 * len(shown)), paint,
        caption="Differences to eager on each input of the plan: the bar from the median to the "
        "99.9 % quantile, the dot the largest; hollow for special values and layouts. A mark at "
        "the left edge is a difference of 0."
        + (f" {left_out} inputs with smaller differences are left out." if left_out else ""),
        text=f"Largest difference of each input; the largest of all is {top.max_abs:.2g}, at "
        f"{top.case}.",
    )  # fmt: skip


def _paint_histogram(axes: Axes, spread: ErrorSpread) -> None:
    bins = [row[0] for row in (*spread.package, *spread.eager)]
    nonzero = [one for one in bins if one > LOWEST_BIN] or [LOWEST_BIN + 1]
    # What is exact stands a little left of the smallest error, as a bar of its own.
    exact = min(nonzero) - 2
    for rows, label in ((spread.package, "package"), (spread.eager, "eager")):
        places = [exact if row[0] == LOWEST_BIN else row[0] for row in rows]
        shares = [100.0 * row[1] / spread.elements for row in rows]
        edges = [place + 0.5 for place in places]
        if label == "package":
            axes.bar(edges, shares, width=0.94, color=FIRST, alpha=0.55, label=label)
        else:
            axes.bar(
                edges, shares, width=0.94, fill=False, edgecolor=SECOND, linewidth=1.6, label=label
            )
    ticks = [one for one in range(min(nonzero), max(nonzero) + 2) if one % 2 == 0]
    ticks = ticks[:: max(1, math.ceil(len(ticks) / 6))]
    has_exact = LOWEST_BIN in bins
    labels = [*(["0"] if has_exact else []), *(f"1e{one // 2}" for one in ticks)]
    axes.set_xticks([*([exact + 0.5] if has_exact else []), *map(float, ticks)], labels)
    axes.set_xlabel("distance to float64")
    axes.set_ylabel("elements, %")
    axes.legend(loc="upper left", fontsize=8.5, handlelength=1.2)
    axes.margins(y=0.28)


def _paint_magnitudes(axes: Axes, spread: ErrorSpread, agreed: Tolerance) -> None:
    most = math.log1p(max(row[2] for row in spread.apart))
    real = [row for row in spread.apart if row[1] > LOWEST_BIN] or list(spread.apart)
    lowest = min(row[1] for row in real) - 2
    sizes = [row[0] for row in spread.apart if row[0] > LOWEST_BIN] or [0]
    least = min(sizes)
    for size, error, count in spread.apart:
        x, y = max(size, least - 1), lowest if error == LOWEST_BIN else error
        share = 0.12 + 0.88 * math.log1p(count) / most
        axes.bar(x + 0.5, 1.0, bottom=y, width=1.0, color=THIRD, alpha=round(share, 2))
    ends = [least - 1, max(sizes) + 1]
    points = [ends[0] + (ends[1] - ends[0]) * step / 40 for step in range(41)]
    bounds = [agreed.atol + agreed.rtol * max(10 ** (p / 2), spread.rms) for p in points]
    if all(bound > 0 for bound in bounds):
        axes.plot(points, [2 * math.log10(b) for b in bounds], color=INK, linewidth=1.3)
        axes.annotate(
            "agreed", (points[0], 2 * math.log10(bounds[0])), xytext=(2, 3),
            textcoords="offset points", fontsize=8.5,
        )  # fmt: skip
    _label_halves(axes.xaxis, range(ends[0], ends[1] + 1), 6)
    low, high = (int(one) for one in axes.get_ylim())
    _label_halves(axes.yaxis, range(low, high + 1), 7)
    axes.set_xlabel("|eager|")
    axes.set_ylabel("|package - eager|")


def _label_halves(axis: object, ends: range, count: int) -> None:
    """Label an axis of half decades by powers of ten."""
    ticks = [one for one in ends if one % 2 == 0]
    ticks = ticks[:: max(1, math.ceil(len(ticks) / count))]
    axis.set_ticks(ticks, [f"1e{one // 2}" for one in ticks])  # type: ignore[attr-defined]


def _paint_input(axes: Axes, row: int, deviation: Deviation, floor: float) -> None:
    assert deviation.figures is not None
    median, _, upper = (max(floor, q) for q in (*deviation.figures.quantiles, 0.0, 0.0, 0.0)[:3])
    color = MUTED if deviation.special else FIRST
    is_bad = not deviation.accepted
    axes.plot(
        [floor, max(floor, deviation.max_abs)], [row, row], color=FAINT, linewidth=0.8, zorder=1
    )
    axes.plot([median, upper], [row, row], color=color, linewidth=4.0, alpha=0.45, zorder=2)
    axes.plot(
        [max(floor, deviation.max_abs)], [row], marker="o", markersize=4.5, zorder=3,
        linestyle="none", color=SECOND if is_bad else color,
        markerfacecolor="none" if deviation.special else None,
    )  # fmt: skip


def _error_sizes(deviation: Deviation) -> tuple[float, ...]:
    return (*(deviation.figures.quantiles if deviation.figures else ()), deviation.max_abs)


def _label(manifest: Manifest, deviation: Deviation, *, has_several_outputs: bool) -> str:
    name = deviation.case if len(deviation.case) <= 46 else deviation.case[:43] + "..."
    names_output = has_several_outputs and not is_inside_graph(deviation)
    return f"{name}, {output_name(manifest, deviation.output)}" if names_output else name


def is_inside_graph(deviation: Deviation) -> bool:
    """Return whether values inside the graph were compared, which have no names of outputs."""
    return deviation.case.startswith("inside, ")


def output_name(manifest: Manifest, index: int) -> str:
    """Return an output's name in the signature; its number where it has none."""
    outputs = manifest.signature.outputs
    return outputs[index].name if index < len(outputs) else str(index)


def _format_share(part: int, whole: int) -> str:
    return f"{100.0 * part / whole:.3g} %" if whole else "none"


def draw_latency(name: str, target: TargetRecord) -> Picture | None:
    """Return the milliseconds a call of eager and of the package; None where nothing was timed."""
    timings = target.timings
    if not timings:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for row, timing in enumerate(timings):
            _paint_timing(axes, row, timing)
        axes.set_yticks(range(len(timings)), [timing.case[:46] for timing in timings])
        axes.set_ylim(len(timings) - 0.4, -0.6)
        make_logarithmic(axes)
        axes.margins(x=0.22)
        axes.grid(axis="x")
        axes.set_xlabel("milliseconds a call, logarithmic")
        axes.legend(
            handles=axes.get_legend_handles_labels()[0][:2], loc="lower center", ncols=2,
            bbox_to_anchor=(0.5, 1.0), fontsize=8.5,
        )  # fmt: skip

    latencies = "; ".join(
        f"at {t.case} eager takes {format_milliseconds(t.eager_s)} and the package "
        f"{format_milliseconds(t.package_s)}" for t in timings
    )  # fmt: skip
    has_intervals = any(t.package_high_s for t in timings)
    return draw(
        name, (7.9, 1.2 + 0.65 * len(timings)), paint,
        caption="Medians of calls made in turns"
        + (", with 95 % intervals." if has_intervals else "."),
        text=f"Latency: {latencies}.",
    )  # fmt: skip


def _paint_timing(axes: Axes, row: int, timing: Timing) -> None:
    rows = (
        ("eager", SECOND, -0.17, timing.eager_s, timing.eager_low_s, timing.eager_high_s),
        ("package", FIRST, 0.17, timing.package_s, timing.package_low_s, timing.package_high_s),
    )
    for label, color, shift, median, low, high in rows:
        y = row + shift
        axes.plot(
            [median * 1e3], [y], marker="o", markersize=6, color=color, label=label,
            linestyle="none", zorder=3,
        )  # fmt: skip
        if high:
            axes.plot([low * 1e3, high * 1e3], [y, y], color=color, linewidth=2.5, alpha=0.6)
        axes.annotate(
            format_milliseconds(median), (max(median, high) * 1e3, y), xytext=(7, 0), fontsize=8.5,
            textcoords="offset points", va="center", color=INK,
        )  # fmt: skip


def format_milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds with three digits, or all of them from a second on."""
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"
