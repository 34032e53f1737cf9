"""Probe: the mechanical gate. A program without Python calls, ill-treats and measures a package.

`run` times nothing, so that other targets' steps may run beside it, and half of it beside the other
half. `measure` is the part that is timed: nothing else of the release runs beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from handoff.artifacts.release.manifest import is_large
from handoff.artifacts.release.mechanics import Growth, Mechanics, Opening, Rate, Replay, Trial
from handoff.tasks.compile.arm.emulation import emulated_target
from handoff.tasks.probe.build import build_arm_runner, build_runner
from handoff.tasks.probe.cases import (
    TrialOutcomes,
    WrittenCases,
    describe_hostile,
    try_all,
    write_cases,
)
from handoff.tasks.probe.messages import MeasureJob, ProbeJob, ProbeResult
from handoff.tasks.probe.runner_process import LoadedProgram
from handoff.tasks.probe.session import Session, parse_records, write_trial_release
from handoff.tasks.probe.verdict import THREADS, judge_calls, judge_measures
from handoff.tasks.verify.loading import PACKAGE

T = TypeVar("T")


def run(job: ProbeJob) -> ProbeResult:
    """Replay golden inputs from several threads, feed hostile ones, and watch memory.

    The packages are run by the C++ runner alone, in processes with limits; what Python's loader
    gives is the measure. What is `known` of a package of the same code is taken over but for the
    replays. Raises `EnvironmentLacking` where the runner can't be built; whatever the runner does
    is a result, and a check that could not run a reason to refuse.
    """
    build = build_arm_runner if emulated_target(job.slug) else build_runner
    program, build_s = build(job.source, job.programs)
    job.workspace.mkdir(parents=True, exist_ok=True)
    with _Sessions(job, program) as sessions:
        return _probe(job, sessions, build_s)


class _Sessions:
    """The program's sessions: in turns, with the cases for many threads, and in the background.

    Most of a short run is one thread's. Large packages are opened once at a time, and one GPU is
    for one process.
    """

    def __init__(self, job: ProbeJob, program: Path) -> None:
        # A GPU's programs are started in a way of their own, and an emulator's are the emulator.
        is_loaded = not job.fit.gpu_capability and emulated_target(job.slug) is None
        self._loaded = [LoadedProgram(program, job.limits) for _ in range(2 * is_loaded)]
        main, background = self._loaded or (None, None)
        self.main = Session(job, program, loaded=main)
        self.crowded = Session(job, program, "crowded.safetensors", loaded=main)
        self.background = Session(job, program, loaded=background)
        self._is_shared = not (
            job.fit.gpu_capability or any(is_large(file.size_bytes) for file in job.files)
        )
        self._pool = ThreadPoolExecutor(1)

    def submit(self, run: Callable[..., T], *arguments: object) -> Future[T]:
        """Begin to run something with the background session."""
        future = self._pool.submit(run, self.background, *arguments)
        if not self._is_shared:
            wait([future])
        return future

    def collect(self, future: Future[T], run: Callable[..., T], *arguments: object) -> T:
        """Return the result; what hasn't begun in the background is run by the main session."""
        return run(self.main, *arguments) if future.cancel() else future.result()

    @property
    def commands(self) -> tuple[str, ...]:
        """How to repeat what was run, in an order that doesn't depend on who was free."""
        return tuple(sorted(command for one in self._sessions for command in one.commands))

    @property
    def failures(self) -> tuple[str, ...]:
        """What kept good inputs from their end."""
        return tuple(failure for one in self._sessions for failure in one.failures)

    @property
    def _sessions(self) -> tuple[Session, ...]:
        return self.main, self.crowded, self.background

    def __enter__(self) -> _Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for loaded in self._loaded:
            loaded.close()


def _probe(job: ProbeJob, sessions: _Sessions, build_s: float) -> ProbeResult:
    main = sessions.main
    write_trial_release(job, main.release)
    written_cases = write_cases(job, main.release, main.cases, sessions.crowded.cases)
    if job.known:
        replays = _replay_all(sessions)
        mechanics = replace(job.known, replays=replays, notes=_notes(written_cases, replays))
    else:
        mechanics = _probe_mechanics(sessions, written_cases)
    reasons = (*sessions.failures, *judge_calls(mechanics))
    return ProbeResult(mechanics, reasons, main.program, build_s)


def _probe_mechanics(sessions: _Sessions, cases: WrittenCases) -> Mechanics:
    """Replay, and feed hostile inputs: to the package alone, and by the checked entry."""
    job = sessions.main.job
    hostile = describe_hostile(job.signature, cases.sizes, on_gpu=job.fit.gpu_capability > 0)
    # What is hostile to the package alone is all that takes memory without asking.
    unchecked_future = sessions.submit(_try_hostile, hostile, ["--unchecked"])
    # An emulator's memory says nothing of the package's.
    is_watched = emulated_target(sessions.main.job.slug) is None
    growth_future = sessions.submit(_watch_memory) if is_watched else None
    replays = _replay_all(sessions)
    checked, unchecked = _try_hostile(sessions.main, hostile, []), unchecked_future.result()
    trials = tuple(
        Trial(name, unchecked[name][0], checked[name][0], unchecked[name][1]) for name in hostile
    )
    return Mechanics(
        cases.names[0],
        replays=replays,
        growth=growth_future.result() if growth_future else None,
        trials=trials,
        commands=sessions.commands,
        notes=_notes(cases, replays),
    )


def _notes(cases: WrittenCases, replays: Sequence[Replay]) -> tuple[str, ...]:
    notes = []
    if cases.left_out:
        notes.append(f"{cases.left_out} larger cases were run by Python alone")
    notes += [
        f"{replay.different} of {replay.calls} calls of {replay.file} from {replay.threads} threads"
        f" with {replay.intra_op} a call gave other bits than Python with {torch.get_num_threads()}"
        for replay in replays
        if replay.different
    ]
    return tuple(notes)


def _replay_all(sessions: _Sessions) -> tuple[Replay, ...]:
    """Compare from 1, 2 and 8 threads, then the `.pt2`, then with other threads for a call.

    With as many threads for a call as Python's, the bits are Python's. With others sums are added
    up in another order; and code that was compiled for a number may not bear another.
    """
    usual = torch.get_num_threads()
    *few, most = THREADS
    # The one that doesn't wait for a second core of its own goes beside the rest, unless what is
    # tried there takes longer.
    single_future = sessions.submit(_replay_file, 1) if usual > 1 else None
    replays = [
        *_replay_file(sessions.main, usual, "--threads", ",".join(map(str, few))),
        *_replay_file(sessions.crowded, usual, "--threads", str(most)),
        *_replay_file(sessions.main, usual, "--file", PACKAGE),
    ]
    other_replays = [_replay_file(sessions.main, n) for n in other_thread_counts(usual) if n > 1]
    single_thread = sessions.collect(single_future, _replay_file, 1) if single_future else ()
    return (*replays, *single_thread, *(replay for group in other_replays for replay in group))


def _replay_file(session: Session, intra_op: int, *options: str) -> tuple[Replay, ...]:
    shared = ["--repeat", "1", "--intra-op", str(intra_op), *session.tolerances()]
    result = session.run("replay", [*options, *shared], f"{intra_op}")
    lines = [{**line, "intra_op": intra_op} for line in result.lines]
    return parse_records(Replay, replace(result, lines=tuple(lines)), "replayed")


def _try_hostile(session: Session, hostile: Sequence[str], options: Sequence[str]) -> TrialOutcomes:
    shared = [*options, *session.tolerances()]

    def arguments(batch: Sequence[str]) -> list[str]:
        return [*shared, *(part for name in batch for part in ("--hostile", name))]

    session.record_command("trial", arguments(hostile))
    return try_all(
        hostile,
        lambda batch: session.call("trial", arguments(batch)),
    )


def _watch_memory(session: Session) -> Growth | None:
    """Watch memory over many calls; None where nothing was reported of it."""
    limits = session.limits
    options = [
        "--threads", "1", "--intra-op", "1", "--seconds", "0",
        "--calls", str(limits.growth_calls), "--growth-seconds", str(limits.growth_s),
    ]  # fmt: skip
    return next(iter(parse_records(Growth, session.run("bench", options), "growth")), None)


def other_thread_counts(usual: int) -> tuple[int, ...]:
    """Return numbers of threads that a serving machine may use: one, and more than are here."""
    return tuple(count for count in (1, max(16, 2 * usual)) if count != usual)


def measure(job: MeasureJob) -> ProbeResult:
    """Return what the probe has found with what was measured, and with the whole verdict.

    Whatever the program does is a result, and what it doesn't report a reason to refuse.
    """
    probed = job.probed
    session = Session(job.probing, probed.runner)
    openings, rates = _measure(session)
    mechanics = replace(
        probed.mechanics,
        openings=openings,
        rates=rates,
        commands=(*probed.mechanics.commands, *session.commands),
    )
    reasons = (*probed.reasons, *session.failures, *judge_measures(mechanics))
    return replace(probed, mechanics=mechanics, reasons=reasons)


def _measure(session: Session) -> tuple[tuple[Opening, ...], tuple[Rate, ...]]:
    """Time the opening, the first call and many."""
    threads = ",".join(map(str, THREADS))
    options = ["--threads", threads, "--intra-op", "1", "--seconds", "0.3", "--calls", "2"]
    result = session.run("bench", options)
    packed = session.run("bench", ["--file", PACKAGE, "--calls", "2", "--seconds", "0"])
    openings = (
        *parse_records(Opening, result, "opened"),
        *parse_records(Opening, packed, "opened"),
    )
    return openings, parse_records(Rate, result, "rate")
