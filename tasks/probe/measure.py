"""Measure: a probed package's opening, first call, calls a second and memory, without Python.

It is the half of the mechanical gate that is timed: nothing else of the release runs beside it.
"""

from __future__ import annotations

from dataclasses import replace

from handoff.artifacts.release.mechanics import Growth, Opening, Rate
from handoff.tasks.probe.judging import THREADS, judge_measures
from handoff.tasks.probe.messages import MeasureJob, ProbeResult
from handoff.tasks.probe.session import Session, told
from handoff.tasks.verify.loading import PACKAGE


def run(job: MeasureJob) -> ProbeResult:
    """Return what the probe has found with what was measured, and with the whole verdict.

    Whatever the program does is a result, and what it doesn't tell a reason to refuse.
    """
    probed = job.probed
    session = Session(job.probing, probed.runner)
    openings, growth, rates = _measure(session)
    mechanics = replace(
        probed.mechanics,
        openings=openings,
        rates=rates,
        growth=growth,
        commands=(*probed.mechanics.commands, *session.commands),
    )
    reasons = (*probed.reasons, *session.failures, *judge_measures(mechanics))
    return replace(probed, mechanics=mechanics, reasons=reasons)


def _measure(session: Session) -> tuple[tuple[Opening, ...], Growth | None, tuple[Rate, ...]]:
    """Time the opening, the first call and many; watch memory over the many."""
    limits = session.limits
    options = [
        "--threads", ",".join(map(str, THREADS)), "--intra-op", "1", "--seconds", "0.7",
        "--calls", str(limits.growth_calls), "--growth-seconds", str(limits.growth_s),
    ]  # fmt: skip
    ended = session.run("bench", options)
    growth = told(Growth, ended, "growth")
    packed = session.run("bench", ["--file", PACKAGE, "--calls", "2", "--seconds", "0"])
    openings = (*told(Opening, ended, "opened"), *told(Opening, packed, "opened"))
    return openings, growth[0] if growth else None, told(Rate, ended, "rate")
