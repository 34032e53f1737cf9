"""The picture of a target's latency: eager and the package on each timed input, with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handoff.artifacts.release.evidence import Timing
from handoff.artifacts.release.manifest import TargetRecord
from handoff.tasks.report.pictures import FIRST, INK, SECOND, Picture, draw, make_logarithmic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_latency(name: str, target: TargetRecord) -> Picture | None:
    """Return the milliseconds a call of eager and of the package; None where nothing was timed."""
    timings = target.timings
    if not timings:
        return None

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for place, timing in enumerate(timings):
            _paint(axes, place, timing)
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

    told = "; ".join(
        f"at {t.case} eager takes {milliseconds(t.eager_s)} and the package "
        f"{milliseconds(t.package_s)}" for t in timings
    )  # fmt: skip
    has_intervals = any(t.package_high_s for t in timings)
    return draw(
        name, (7.9, 1.2 + 0.65 * len(timings)), paint,
        caption="Medians of calls made in turns"
        + (", with 95 % intervals." if has_intervals else "."),
        text=f"Latency: {told}.",
    )  # fmt: skip


def _paint(axes: Axes, place: int, timing: Timing) -> None:
    rows = (
        ("eager", SECOND, -0.17, timing.eager_s, timing.eager_low_s, timing.eager_high_s),
        ("package", FIRST, 0.17, timing.package_s, timing.package_low_s, timing.package_high_s),
    )
    for label, color, shift, median, low, high in rows:
        y = place + shift
        axes.plot(
            [median * 1e3], [y], marker="o", markersize=6, color=color, label=label,
            linestyle="none", zorder=3,
        )  # fmt: skip
        if high:
            axes.plot([low * 1e3, high * 1e3], [y, y], color=color, linewidth=2.5, alpha=0.6)
        axes.annotate(
            milliseconds(median), (max(median, high) * 1e3, y), xytext=(7, 0), fontsize=8.5,
            textcoords="offset points", va="center", color=INK,
        )  # fmt: skip


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds with three digits, or all of them from a second on."""
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"
