"""What a simulated night took, put together from its flow runs and what was counted beside them."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from tests.studies.benchmarks.night_outcome import Outcome, Scenario
from tests.studies.benchmarks.night_stack import Meter

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

_NAMED_REQUESTS = 20


@dataclass(frozen=True)
class Counts:
    """What the servers and workers have used so far: CPU seconds by group, requests, commits."""

    cpu_s: dict[str, float]
    requests: Counter[str]
    commits: int

    @classmethod
    def of(cls, meter: Meter) -> Counts:
        """Count now."""
        commits = int(meter.stack.ask("select sum(xact_commit) from pg_stat_database"))
        return cls(meter.cpu_seconds(), meter.stack.requests(), commits)

    def since(self, before: Counts) -> Counts:
        """Return what was used between two counts."""
        cpu_s = {group: used - before.cpu_s.get(group, 0.0) for group, used in self.cpu_s.items()}
        return Counts(cpu_s, self.requests - before.requests, self.commits - before.commits)


@dataclass(frozen=True)
class Night:
    """The parent's run, those of its models, and the seconds of the night."""

    parent: FlowRun
    children: list[FlowRun]
    wall_s: float


def outcome_of(
    scenario: Scenario, faster: float, night: Night, counts: Counts, meter: Meter
) -> Outcome:
    """Return the night's outcome."""
    parent, children = night.parent, night.children
    done = [run for run in children if run.state is not None and run.state.is_completed()]
    starts = [run.start_time for run in done if run.start_time]
    ends = sorted(run.end_time for run in done if run.end_time)
    assert parent.start_time is not None
    # With nothing due there is no run to wait for.
    first = min((run.created for run in children if run.created), default=parent.start_time)
    requests = dict(counts.requests.most_common(_NAMED_REQUESTS))
    return Outcome(
        scenario=scenario, faster=faster, done=len(done), wall_s=night.wall_s,
        ended=f"{parent.state.name}: {parent.state.message}"[:300] if parent.state else "",
        survey_s=_since(parent.start_time, first),
        drain_s=_since(min(starts), ends[-1]) if ends else 0.0,
        cpu_s=counts.cpu_s, peak_bytes=meter.peaks, connections=meter.connections,
        load=statistics.median(meter.loads), asked_s=meter.asked_s,
        waits_s=[_since(r.created, r.start_time) for r in done if r.start_time and r.created],
        took_s=[r.total_run_time.total_seconds() for r in done],
        requests=requests | {"all": counts.requests.total()}, commits=counts.commits,
        database_bytes=int(meter.stack.ask("select pg_database_size('postgres')")),
        finished=[_since(first, end) for end in ends],
    )  # fmt: skip


def _since(first: datetime, then: datetime) -> float:
    return (then - first).total_seconds()
