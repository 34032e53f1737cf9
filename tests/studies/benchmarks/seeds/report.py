"""What is printed: a table for each model, and a summary of all."""

from __future__ import annotations

from collections.abc import Sequence

from handoff.infra.terminal.console import print_table
from tests.studies.benchmarks.seeds.contestants import EAGER, HANDOFF
from tests.studies.benchmarks.seeds.goals import verdicts
from tests.studies.benchmarks.seeds.measured import Measurement, geometric_mean
from tests.studies.benchmarks.served.turns import Ratio

_FASTEST = f"{HANDOFF}the fastest variant of each"


def print_measured(measured: Measurement) -> None:
    """Print a model's table, and who is missing."""
    columns = ("what", "seconds", "times eager's speed", "largest difference")
    print_table(title_of(measured), columns, rows_of(measured))
    for line in missing_lines(measured):
        print(line)


def title_of(measured: Measurement) -> str:
    """Return what was measured, on what, and what else the machine did."""
    loads = ", ".join(f"{one.load:.1f}" for one in measured.played)
    return (
        f"{measured.model}, batch {measured.batch}, {measured.precision} on "
        f"{measured.played[0].machine if measured.played else measured.device}: the last "
        f"{measured.runs - measured.runs // 2} of {measured.runs} runs, in "
        f"{len(measured.played)} processes. Load before anything was made: {measured.load:.1f}, "
        f"right before each process's calls: {loads or '-'}"
    )


def rows_of(measured: Measurement) -> list[tuple[str, ...]]:
    """Return the cells of each contestant's line."""
    rows: list[tuple[str, ...]] = []
    for name in measured.contestants:
        ratio = "1" if name == EAGER else str(Ratio.across(measured.ratios(name)))
        apart = f"{measured.apart(name):.1e}"
        rows.append((name, f"{measured.seconds(name):.4g}", ratio, apart))
    return rows


def missing_lines(measured: Measurement) -> list[str]:
    """Return who couldn't be measured, and why."""
    return [f"no {name}: {why}" for name, why in measured.missing.items()]


def print_summary(measured: Sequence[Measurement]) -> None:
    """Print the geometric means of each precision, and a verdict for each goal."""
    for device, precision in dict.fromkeys((one.device, one.precision) for one in measured):
        of_both = [one for one in measured if (one.device, one.precision) == (device, precision)]
        print_table(f"Geometric means over eager, {precision} on {device}",
                    ("what", "models", "times eager's speed"), mean_rows(of_both))  # fmt: skip
    for line in verdicts(measured):
        print(f"Goal: {line}")


def mean_rows(measured: Sequence[Measurement]) -> list[tuple[str, ...]]:
    """Return each contestant's mean, of how many models it is, and the best of Handoff's own."""
    names = dict.fromkeys(name for one in measured for name in one.contestants if name != EAGER)
    by_name = {
        name: [found for one in measured if (found := one.ratios(name))] for name in names
    }  # fmt: skip
    by_name[_FASTEST] = [one.ratios(name) for one in measured if (name := one.fastest())]
    return [
        (name, str(len(rows)), str(geometric_mean(rows))) for name, rows in by_name.items() if rows
    ]
