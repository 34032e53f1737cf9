"""What a simulated night was, what it took, and how that is printed."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from handoff.infra.terminal.console import print_table
from tests.studies.benchmarks.night_flow import recorded_seconds


@dataclass(frozen=True)
class Scenario:
    """How many models go through how many workers of so many slots, as threads or processes."""

    models: int
    workers: int
    slots: int
    threads: bool

    @classmethod
    def parse(cls, text: str, models: int, *, threads: bool) -> Scenario:
        """Return what `16`, `16:500` (models) or `2x8:500` (two workers of eight slots) means."""
        workers, _, named = text.partition(":")
        count, _, slots = workers.partition("x")
        return cls(int(named or models), int(count), int(slots or 1), threads)


@dataclass
class Outcome:
    """What a scenario took. Seconds, bytes by group, and counts."""

    scenario: Scenario
    faster: float
    ended: str
    done: int
    survey_s: float
    wall_s: float
    drain_s: float
    cpu_s: dict[str, float]
    peak_bytes: dict[str, int]
    connections: int
    load: float
    asked_s: list[float]
    waits_s: list[float]
    took_s: list[float]
    requests: dict[str, int]
    commits: int
    database_bytes: int
    finished: list[float] = field(default_factory=list)


def show(outcomes: Sequence[Outcome]) -> None:
    """Print the outcomes, a line each."""
    rows = [cells(one) for one in outcomes]
    print_table(
        f"a rebuild is {recorded_seconds():.0f} s of steps, {outcomes[0].faster:g} times as fast",
        ("models", "workers", "drained in s", "models/min", "of ideal", "survey s", "wait s",
         "run s", "server CPU s", "PG CPU s", "workers CPU s", "parent CPU s", "wall s",
         "requests/model",
         "answer p50/p95 ms", "server MB", "PG MB", "workers MB", "load"),
        rows,
    )  # fmt: skip
    for one in outcomes:
        print(one.ended, Counter(one.requests).most_common(12))


def cells(one: Outcome) -> tuple[str, ...]:
    """Return the cells of an outcome's line in the table."""
    slots = one.scenario.workers * one.scenario.slots
    ideal_s = recorded_seconds() / one.faster * one.done / slots
    asked = sorted(one.asked_s)
    sizes = {group: f"{size / 1e6:.0f}" for group, size in one.peak_bytes.items()}
    return (
        f"{one.done} of {one.scenario.models}",
        f"{one.scenario.workers} x {one.scenario.slots} "
        f"{'threads' if one.scenario.threads else 'processes'}",
        f"{one.drain_s:.0f}", f"{one.done / max(one.drain_s, 1) * 60:.1f}",
        f"{ideal_s / max(one.drain_s, 1):.2f}", f"{one.survey_s:.1f}",
        f"{_middle(one.waits_s):.0f}", f"{_middle(one.took_s):.1f}",
        *(f"{one.cpu_s[group]:.0f}" for group in ("server", "postgres", "workers", "control")),
        f"{one.wall_s:.0f}",
        f"{one.requests['all'] / max(one.done, 1):.0f}",
        f"{1e3 * asked[len(asked) // 2]:.0f}/{1e3 * asked[len(asked) * 95 // 100]:.0f}",
        *(sizes.get(group, "-") for group in ("server", "postgres", "workers")),
        f"{one.load:.1f}",
    )  # fmt: skip


def _middle(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0
