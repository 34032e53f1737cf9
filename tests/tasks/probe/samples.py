"""What the probe's tests share: limits that are soon met, and a whole mechanical gate."""

from __future__ import annotations

from pathlib import Path

from handoff.artifacts.release.mechanics import (
    Growth,
    Mechanics,
    Opening,
    Rate,
    Replay,
    RunnerLimits,
    Trial,
)
from handoff.tasks.probe import step
from handoff.tasks.probe import step as probe
from handoff.tasks.probe.messages import MeasureJob, ProbeJob, ProbeResult

PLANTED = Path(__file__).parent / "planted"
SHORT = RunnerLimits(memory_bytes=1 << 30, answer_s=2.0)
QUICK = RunnerLimits(growth_calls=500, growth_s=2.0)


def bless(job: ProbeJob) -> ProbeResult:
    """Probe and measure."""
    return step.measure(MeasureJob(job, probe.run(job)))


def mechanics(*trials: Trial, grown: int = 0, beyond: int = 0, different: int = 0) -> Mechanics:
    """Return what a probe found out about a package that is good but for what is given."""
    places = [("model.so", 1), ("model.so", 2), ("model.so", 8), ("model.pt2", 1), ("model.so", 1)]
    return Mechanics(
        case="batch=1",
        replays=tuple(Replay(f, n, 2, 2, 4, different, beyond, 0.5) for f, n in places),
        openings=tuple(Opening(f, 0.1, 0.1, 0.1, 1, 1, 1) for f in ("model.so", "model.pt2")),
        rates=tuple(Rate(n, 10.0) for n in (1, 2, 8)),
        growth=Growth(10_000, 1.0, 1 << 30, grown, 400 << 20),
        trials=trials or (Trial("missing", "refused", "refused"),),
    )
