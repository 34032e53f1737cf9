"""Plots: what a release's record says, as pictures beside its report (SVG, by matplotlib)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from artifacts.evidence import Candidate, pareto
from artifacts.manifest import Manifest, TargetRecord

# Okabe and Ito's colours, which people who don't tell red from green can tell apart.
_FRONT, _OTHER, _SHIPPED = "#0072b2", "#999999", "#d55e00"


def pictures(manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    """Give each picture's file name and its SVG: one of every target's search that timed some."""
    for target in manifest.targets:
        if has_search_picture(target):
            yield search_picture_name(target), draw_search(target)


def has_search_picture(target: TargetRecord) -> bool:
    """Tell whether a search has timed more than the plain package."""
    return sum(bool(one.ratios) for one in target.candidates) > 1


def search_picture_name(target: TargetRecord) -> str:
    """Return the file name of the picture of a target's search."""
    return f"search-{target.slug}.svg"


def draw_search(target: TargetRecord) -> bytes:
    """Return the variants as SVG: speed against error, size as area, the Pareto front in colour.

    Speed is the geometric mean of the plain package's time by the variant's, with a bar over the
    95 % intervals; error is the largest to eager. Beside each: its size and its compile seconds.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    timed = [one for one in target.candidates if one.ratios]
    front = pareto(target.candidates)
    # The same bytes for the same record, and text that a reader can select.
    with mpl.rc_context({"svg.hashsalt": "handoff", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        axes = figure.subplots()
        for one in timed:
            _draw(axes, one, target.chosen, on_front=one in front)
        _join(axes, [one for one in timed if one in front])
        axes.axhline(1.0, color=_OTHER, linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.margins(x=0.3, y=0.25)
        axes.set_xlabel("largest error to eager")
        axes.set_ylabel("times as fast as the plain package")
        axes.set_title(
            f"{target.slug}: what was tried (blue: nothing else is better in everything)"
        )
        written = io.BytesIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()


def _draw(axes: Any, one: Candidate, chosen: str, *, on_front: bool) -> None:  # noqa: ANN401
    color = _SHIPPED if one.name == chosen else _FRONT if on_front else _OTHER
    # An error of 0 has no place on a logarithmic axis; this is below float32's last digit.
    x = max(one.max_abs, 1e-9)
    low, high = min(one.ratios_low), max(one.ratios_high)
    axes.plot([x, x], [low, high], color=color, linewidth=1.2, zorder=2)
    axes.scatter(x, one.score, s=20 + one.size_bytes / 5e5, color=color, zorder=3)
    text = f"{one.name}\n{one.size_bytes / 1e6:.1f} MB, {one.compile_s:.0f} s"
    axes.annotate(
        text + ("\nshipped" if one.name == chosen else ""), (x, one.score), xytext=(8, 0),
        textcoords="offset points", fontsize=8, va="center",
    )  # fmt: skip


def _join(axes: Any, front: list[Candidate]) -> None:  # noqa: ANN401 - matplotlib's axes
    ordered = sorted(front, key=lambda one: (one.max_abs, one.score))
    points = [(max(one.max_abs, 1e-9), one.score) for one in ordered]
    axes.plot(*zip(*points, strict=True), color=_FRONT, linewidth=0.8, alpha=0.5, zorder=1)
