"""Probe: the mechanical gate. A program without Python calls, ill-treats and measures a package.

`run` times nothing, so that other targets' steps may run beside it, and half of it beside the other
half. `measure` is the part that is timed: nothing else of the release runs beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from handoff.artifacts.release.manifest import is_large
from handoff.artifacts.release.mechanics import Growth, Mechanics, Opening, Rate, Replay, Trial
from handoff.tasks.compile.arm.emulation import emulated_target
from handoff.tasks.probe.build import build_arm_runner, build_runner
from handoff.tasks.probe.cases import Tried, Written, describe_hostile, try_all, write_cases
from handoff.tasks.probe.judging import THREADS, judge_calls, judge_measures
from handoff.tasks.probe.messages import MeasureJob, ProbeJob, ProbeResult
from handoff.tasks.probe.session import Session, told, write_trial_release
from handoff.tasks.verify.loading import PACKAGE


def run(job: ProbeJob) -> ProbeResult:
    """Replay golden inputs from several threads, and feed hostile ones.

    The packages are run by the C++ runner alone, in processes with limits; what Python's loader
    gives is the measure. What is `known` of a package of the same code is taken over but for the
    replays. Raises `EnvironmentLacking` where the runner can't be built; whatever the runner does
    is a result, and a check that could not run a reason to refuse.
    """
    build = build_arm_runner if emulated_target(job.slug) else build_runner
    program, build_s = build(job.source, job.programs)
    job.workspace.mkdir(parents=True, exist_ok=True)
    session, aside = Session(job, program), Session(job, program)
    write_trial_release(job, session.release)
    written = write_cases(job, session.release, session.cases)
    if job.known:
        replays = _replay(session)
        mechanics = replace(job.known, replays=replays, notes=_notes(written, replays))
    else:
        mechanics = _find_out(session, aside, written)
    return ProbeResult(
        mechanics, (*session.failures, *aside.failures, *judge_calls(mechanics)), program, build_s
    )


def _find_out(session: Session, aside: Session, written: Written) -> Mechanics:
    """Replay, and feed hostile inputs: to the package alone `aside`, and by the checked entry."""
    job = session.job
    on_gpu = job.fit.gpu_capability > 0
    hostile = describe_hostile(job.signature, written.sizes, on_gpu=on_gpu)
    with ThreadPoolExecutor(1) as pool:
        # Most of a trial is starting the program, and what is hostile to the package alone is all
        # that takes memory without asking.
        alone = pool.submit(_try, aside, hostile, ["--unchecked"])
        if on_gpu or any(is_large(file.size_bytes) for file in job.files):
            alone.result()
        replays = _replay(session)
        checked = _try(session, hostile, [])
        trials = tuple(
            Trial(name, alone.result()[name][0], checked[name][0], alone.result()[name][1])
            for name in hostile
        )
    commands = (*session.commands, *aside.commands)
    return Mechanics(
        written.names[0],
        replays=replays,
        trials=trials,
        commands=commands,
        notes=_notes(written, replays),
    )


def _notes(written: Written, replays: Sequence[Replay]) -> tuple[str, ...]:
    notes = []
    if written.left_out:
        notes.append(f"{written.left_out} larger cases were run by Python alone")
    notes += [
        f"{replay.different} of {replay.calls} calls of {replay.file} from {replay.threads} threads"
        f" with {replay.intra_op} a call gave other bits than Python with {torch.get_num_threads()}"
        for replay in replays
        if replay.different
    ]
    return tuple(notes)


def _replay(session: Session) -> tuple[Replay, ...]:
    """Compare from 1, 2 and 8 threads, then the `.pt2`, then with other threads for a call.

    With as many threads for a call as Python's, the bits are Python's. With others sums are added
    up in another order; and code that was compiled for a number may not bear another.
    """
    usual, threads = torch.get_num_threads(), ",".join(map(str, THREADS))
    plans = [
        (usual, ["--threads", threads, "--repeat", "1"]),
        (usual, ["--file", PACKAGE, "--repeat", "1"]),
        *((other, ["--repeat", "2"]) for other in other_thread_counts(usual)),
    ]
    found: list[Replay] = []
    for intra_op, options in plans:
        own = ["--intra-op", str(intra_op)]
        ended = session.run("replay", [*options, *own, *session.tolerances()], f"{intra_op}")
        lines = [{**line, "intra_op": intra_op} for line in ended.lines]
        found += told(Replay, replace(ended, lines=tuple(lines)), "replayed")
    return tuple(found)


def _try(session: Session, hostile: Sequence[str], options: Sequence[str]) -> Tried:
    own = [*options, *session.tolerances()]

    def arguments(some: Sequence[str]) -> list[str]:
        return [*own, *(part for name in some for part in ("--hostile", name))]

    session.note("trial", arguments(hostile))
    return try_all(
        hostile,
        lambda some: session.call("trial", arguments(some)),
    )


def other_thread_counts(usual: int) -> tuple[int, ...]:
    """Return numbers of threads that a serving machine may use: one, and more than are here."""
    return tuple(count for count in (1, max(16, 2 * usual)) if count != usual)


def measure(job: MeasureJob) -> ProbeResult:
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
