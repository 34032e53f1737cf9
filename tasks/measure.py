"""Measure: a probed package's opening, first call, calls a second and memory, without Python.

It is the half of the mechanical blessing that is timed: nothing else of the release runs beside it.
"""

from __future__ import annotations

from dataclasses import replace

from artifacts.mechanics import Growth, Mechanics, Opening, Rate
from artifacts.probes import MeasureJob, ProbeResult
from tasks.loading import PACKAGE
from tasks.probe import THREADS
from tasks.probing.session import Session, lacking, told

# Memory that a package may come to hold for good while it is called: what an allocator keeps.
_GROWTH_BYTES = 4 << 20
_GROWTH_SHARE = 0.01


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
    reasons = (*probed.reasons, *session.failures, *judge(mechanics))
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


def judge(found: Mechanics) -> list[str]:
    """Return the reasons to refuse: what grew, and what nothing was told of.

    Memory leaks where all through the last quarter of the calls more was held than ever in their
    first half, by more than 4 MiB and 1 % of what was resident: an allocator takes what it then
    keeps, and hands some back and takes it again.
    """
    growth = found.growth
    reasons = lacking(
        {
            "openings": (len(found.openings), 2),
            "memory": (int(growth is not None), 1),
            "calls a second": (len(found.rates), len(THREADS)),
        }
    )
    if growth is not None and growth.second_half_bytes > max(
        _GROWTH_BYTES, _GROWTH_SHARE * growth.resident_bytes
    ):
        reasons.append(
            f"memory grew by {growth.second_half_bytes / 2**20:.1f} MiB over the second half of "
            f"{growth.calls} calls: it leaks"
        )
    return reasons
