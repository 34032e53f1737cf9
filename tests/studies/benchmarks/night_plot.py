"""Draw what `tests.studies.benchmarks.night --json` has kept: one picture of several files.

python -m tests.studies.benchmarks.night_plot night.png threads.json processes.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GROUPS = {"server": "Prefect's server", "postgres": "PostgreSQL", "control": "the parent",
           "workers": "workers and their runs"}  # fmt: skip
_COLORS = ("#4269d0", "#efb118", "#6cc5b0", "#ff725c")

Plain = dict[str, Any]


def main(picture: Path, files: list[Path]) -> None:
    """Draw the nights that the files hold."""
    from matplotlib.figure import Figure

    nights: list[Plain] = [one for file in files for one in json.loads(file.read_text())]
    nights = [one for one in nights if one["done"]]
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    (drained, per_model), (memory, answers) = figure.subplots(2, 2)
    _draw_drained(drained, nights)
    _draw_bars(per_model, nights, "cpu_s", lambda one, group: one["cpu_s"][group] / one["done"])
    per_model.set_title("CPU seconds for each model", loc="left")
    _draw_bars(memory, nights, "peak_bytes", lambda one, group: one["peak_bytes"][group] / 1e9)
    memory.set_title("Largest memory (proportional set size), GB", loc="left")
    _draw_answers(answers, nights)
    figure.savefig(picture, dpi=110)


def _name(one: Plain) -> str:
    scenario = one["scenario"]
    kind = "threads" if scenario["threads"] else "processes"
    workers = f"{scenario['workers']} x {scenario.get('slots', 1)}"
    return f"{workers}\n{kind}\n{one['done']} of {scenario['models']}"


def _draw_drained(axes: Axes, nights: list[Plain]) -> None:
    for one in nights:
        ends = [0.0, *one["finished"]]
        style = "-" if one["scenario"]["threads"] else "--"
        minutes = [end / 60 for end in ends]
        axes.plot(minutes, range(len(ends)), style, label=_name(one).replace("\n", " "))
    axes.set_title("Models done over the night", loc="left")
    axes.set_xlabel("minutes since the first was handed out")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)


def _draw_bars(axes: Axes, nights: list[Plain], _of: str, value: Any) -> None:
    places = range(len(nights))
    below = [0.0] * len(nights)
    for (group, name), color in zip(_GROUPS.items(), _COLORS, strict=True):
        heights = [value(one, group) if group in one[_of] else 0.0 for one in nights]
        axes.bar(places, heights, bottom=below, color=color, label=name, width=0.6)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    axes.set_xticks(list(places), [_name(one) for one in nights], fontsize=7)
    axes.legend(frameon=False, fontsize=8)
    axes.margins(y=0.25)


def _draw_answers(axes: Axes, nights: list[Plain]) -> None:
    shown = [[1e3 * seconds for seconds in one["asked_s"]] for one in nights]
    axes.boxplot(shown, whis=(5, 95), showfliers=False)
    axes.set_xticks(range(1, len(nights) + 1), [_name(one) for one in nights], fontsize=7)
    axes.set_yscale("log")
    axes.set_title("The server's answer to a small question, ms (5 to 95 %)", loc="left")
    axes.grid(alpha=0.3, axis="y")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
