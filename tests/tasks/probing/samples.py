"""What the probe's tests share: limits that are soon met, and a whole mechanical blessing."""

from __future__ import annotations

from pathlib import Path

from artifacts.mechanics import Limits
from artifacts.probes import MeasureJob, ProbeJob, ProbeResult
from tasks import measure, probe

PLANTED = Path(__file__).parent / "planted"
SHORT = Limits(memory_bytes=1 << 30, answer_s=2.0)
QUICK = Limits(growth_calls=500, growth_s=2.0)


def bless(job: ProbeJob) -> ProbeResult:
    """Probe and measure."""
    return measure.run(MeasureJob(job, probe.run(job)))
