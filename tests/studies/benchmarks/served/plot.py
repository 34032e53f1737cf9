"""Draws the races: each model's speeds over eager, with their intervals."""

from __future__ import annotations

from pathlib import Path

from tests.studies.benchmarks.served.race import HANDOFF, HANDOFF_FLOAT32
from tests.studies.benchmarks.served.standing import Standing

_COLORS = {
    "torch.compile": "#9c6b4e", "torch.compile max-autotune": "#c9a68c", "TorchScript": "#9498a0",
    "ONNX Runtime": "#4269d0", "OpenVINO": "#6cc5b0", "AOTInductor": "#efb118",
    "eager bfloat16": "#9498a0", "torch.compile bfloat16": "#9c6b4e",
    "OpenVINO bfloat16": "#6cc5b0", HANDOFF_FLOAT32: "#f2a0a6", HANDOFF: "#d62f3c",
}  # fmt: skip


def draw(standings: list[Standing], picture: Path) -> None:
    """Write the picture, a PNG; the models in the order of Handoff's speed."""
    from matplotlib.figure import Figure

    order = sorted(standings, key=lambda one: _value(one, HANDOFF))
    figure = Figure(figsize=(9, 0.36 * len(order) + 1.4), layout="constrained")
    axes = figure.subplots()
    names = [name for name in _COLORS if any(name in one.over_eager for one in order)]
    for place, name in enumerate(names):
        shift = (place - (len(names) - 1) / 2) * 0.09
        rows = [(y + shift, one.over_eager[name]) for y, one in enumerate(order)
                if name in one.over_eager]  # fmt: skip
        values = [ratio.value for _, ratio in rows]
        spread = [
            [ratio.value - ratio.low for _, ratio in rows],
            [ratio.high - ratio.value for _, ratio in rows],
        ]
        axes.errorbar(
            values, [y for y, _ in rows], xerr=spread, fmt="D" if name == HANDOFF else "o",
            markersize=5 if name == HANDOFF else 3.5, color=_COLORS[name], label=name,
            elinewidth=0.8, zorder=3 if name == HANDOFF else 2,
        )  # fmt: skip
    axes.axvline(1.0, color="#888", linewidth=0.8)
    axes.set_xscale("log")
    ticks = [0.5, 1, 1.5, 2, 3, 5, 8]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(left=0.4)
    axes.set_yticks(range(len(order)), [f"{one.name}, {one.batch}" for one in order])
    axes.set_xlabel("times eager's speed (median of the races, and all of them)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(picture, dpi=110)


def _value(one: Standing, name: str) -> float:
    return one.over_eager[name].value if name in one.over_eager else 0.0
