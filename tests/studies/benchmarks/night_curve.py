"""How a simulated night grows with its models: each number on a new stack, by the same workers.

    make bench-night-curve [NIGHT=50,100,200,400] [WORKERS=1x16] [WRITE=FILE]
    python -m tests.studies.benchmarks.night_curve --models 50,100,200,400 --workers 1x16

A night costs a constant (a survey, a first poll, servers that idle) and its models, so that the
exponent is that at the end, between the last two numbers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tests.marked import require_marks, write_between_marks
from tests.studies.benchmarks.growth import markdown
from tests.studies.benchmarks.night import open_deployed, play
from tests.studies.benchmarks.night_flow import recorded_seconds
from tests.studies.benchmarks.night_outcome import Outcome, Scenario, show
from tests.studies.benchmarks.night_store import fill_store

_MARK = "growth of night"
# What is printed of a night, the exponent that is expected of it, and how it is read.
_Row = tuple[str, str, Callable[[Outcome], float]]
_ROWS: tuple[_Row, ...] = (
    ("seconds, the whole night", "1", lambda one: one.wall_s),
    ("seconds, first model to last", "1", lambda one: one.drain_s),
    ("models a minute", "0", lambda one: 60 * one.done / max(one.drain_s, 1.0)),
    ("the server's CPU seconds", "1", lambda one: one.cpu_s["server"]),
    ("PostgreSQL's CPU seconds", "1", lambda one: one.cpu_s["postgres"]),
    ("the workers' CPU seconds", "1", lambda one: one.cpu_s["workers"]),
    ("the server's largest memory, MB", "0", lambda one: one.peak_bytes["server"] / 1e6),
    ("the workers' largest memory, MB", "0", lambda one: one.peak_bytes["workers"] / 1e6),
    ("the parent's largest memory, MB", "0", lambda one: one.peak_bytes["control"] / 1e6),
    ("Prefect's database, MB", "<= 1", lambda one: one.database_bytes / 1e6),
)


def main() -> None:
    """Play a night of each number of models; print the curve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="50,100,200,400")
    parser.add_argument("--workers", default="1x16", help="2x8: two workers of eight slots")
    parser.add_argument("--faster", type=float, default=20.0)
    parser.add_argument("--limit-s", type=float, default=1800.0, help="of each night")
    parser.add_argument("--write", type=Path, help="a file with the marks of the curve")
    args = parser.parse_args()
    require_marks(args.write, _MARK)
    outcomes: list[Outcome] = []
    loads: list[float] = []
    for size in map(int, args.models.split(",")):
        loads.append(psutil.getloadavg()[0])
        night = _night(Scenario.parse(args.workers, size, threads=True), args.faster,
                       args.limit_s)  # fmt: skip
        show([night])
        if night.done < size:
            print(f"{size} models: {night.done} were done. {night.ended}", file=sys.stderr)
            break
        outcomes.append(night)
    text = format_curve(outcomes, loads)
    print(text)
    if args.write:
        write_between_marks(args.write, _MARK, text)


def _night(scenario: Scenario, faster: float, limit_s: float) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="handoff-night-", dir="/var/tmp") as scratch:
        home = Path(scratch)
        fill_store(home, scenario.models, unchanged=False)
        with open_deployed(home, faster) as stack:
            return play(stack, scenario, faster, limit_s)


def format_curve(outcomes: Sequence[Outcome], loads: Sequence[float]) -> str:
    """Return the curve as a Markdown table, and what it was measured with."""
    if not outcomes:
        return "No night was played to its end."
    sizes = [one.scenario.models for one in outcomes]
    figures = {name: [value_of(one) for one in outcomes] for name, _, value_of in _ROWS}
    lines = markdown("models", sizes, figures, {name: expected for name, expected, _ in _ROWS})
    first = outcomes[0]
    loads_before = ", ".join(f"{load:.1f}" for load in loads)
    return "\n".join([
        *lines, "",
        f"{first.scenario.workers} x {first.scenario.slots} slots as threads, a rebuild of "
        f"{recorded_seconds():.0f} s of steps {first.faster:g} times as fast, each number on a new "
        f"stack. Load before each: {loads_before}.",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
