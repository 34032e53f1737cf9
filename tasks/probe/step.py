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
from handoff.tasks.probe.cases import Tried, Written, describe_hostile, try_all, write_cases
from handoff.tasks.probe.judging import THREADS, judge_calls, judge_measures
from handoff.tasks.probe.limited import LoadedProgram
from handoff.tasks.probe.messages import MeasureJob, ProbeJob, ProbeResult
from handoff.tasks.probe.session import Session, told, write_trial_release
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
    """The program's sessions: in turns, with the cases for many threads, and beside those.

    Most of a short run is one thread's. Large packages are opened once at a time, and one GPU is
    for one process.
    """

    def __init__(self, job: ProbeJob, program: Path) -> None:
        # A GPU's programs are started in a way of their own, and an emulator's are the emulator.
        is_loaded = not job.fit.gpu_capability and emulated_target(job.slug) is None
        self._loaded = [LoadedProgram(program, job.limits) for _ in range(2 * is_loaded)]
        usual, aside = self._loaded or (None, None)
        self.main = Session(job, program, loaded=usual)
        self.crowded = Session(job, program, "crowded.safetensors", loaded=usual)
        self.aside = Session(job, program, loaded=aside)
        self._is_shared = not (
            job.fit.gpu_capability or any(is_large(file.size_bytes) for file in job.files)
        )
        self._pool = ThreadPoolExecutor(1)

    def beside(self, run: Callable[..., T], *arguments: object) -> Future[T]:
        """Begin to run something with the session that is aside."""
        future = self._pool.submit(run, self.aside, *arguments)
        if not self._is_shared:
            wait([future])
        return future

    def taken(self, begun: Future[T], run: Callable[..., T], *arguments: object) -> T:
        """Return what is run beside; what hasn't begun there yet is run by the main session."""
        return run(self.main, *arguments) if begun.cancel() else begun.result()

    @property
    def commands(self) -> tuple[str, ...]:
        """How to repeat what was run, in an order that doesn't tell who was free."""
        return tuple(sorted(command for one in self._all for command in one.commands))

    @property
    def failures(self) -> tuple[str, ...]:
        """What kept good inputs from their end."""
        return tuple(failure for one in self._all for failure in one.failures)

    @property
    def _all(self) -> tuple[Session, ...]:
        return self.main, self.crowded, self.aside

    def __enter__(self) -> _Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for loaded in self._loaded:
            loaded.close()


def _probe(job: ProbeJob, sessions: _Sessions, build_s: float) -> ProbeResult:
    main = sessions.main
    write_trial_release(job, main.release)
    written = write_cases(job, main.release, main.cases, sessions.crowded.cases)
    if job.known:
        replays = _replay(sessions)
        mechanics = replace(job.known, replays=replays, notes=_notes(written, replays))
    else:
        mechanics = _find_out(sessions, written)
    reasons = (*sessions.failures, *judge_calls(mechanics))
    return ProbeResult(mechanics, reasons, main.program, build_s)


def _find_out(sessions: _Sessions, written: Written) -> Mechanics:
    """Replay, and feed hostile inputs: to the package alone, and by the checked entry."""
    job = sessions.main.job
    hostile = describe_hostile(job.signature, written.sizes, on_gpu=job.fit.gpu_capability > 0)
    # What is hostile to the package alone is all that takes memory without asking.
    alone = sessions.beside(_try, hostile, ["--unchecked"])
    # An emulator's memory says nothing of the package's.
    is_watched = emulated_target(sessions.main.job.slug) is None
    watched = sessions.beside(_watch_memory) if is_watched else None
    replays = _replay(sessions)
    checked, unchecked = _try(sessions.main, hostile, []), alone.result()
    trials = tuple(
        Trial(name, unchecked[name][0], checked[name][0], unchecked[name][1]) for name in hostile
    )
    return Mechanics(
        written.names[0],
        replays=replays,
        growth=watched.result() if watched else None,
        trials=trials,
        commands=sessions.commands,
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


def _replay(sessions: _Sessions) -> tuple[Replay, ...]:
    """Compare from 1, 2 and 8 threads, then the `.pt2`, then with other threads for a call.

    With as many threads for a call as Python's, the bits are Python's. With others sums are added
    up in another order; and code that was compiled for a number may not bear another.
    """
    usual = torch.get_num_threads()
    *some, most = THREADS
    # The one that doesn't wait for a second core of its own goes beside the rest, unless what is
    # tried there takes longer.
    single = sessions.beside(_replays, 1) if usual > 1 else None
    found = [
        *_replays(sessions.main, usual, "--threads", ",".join(map(str, some))),
        *_replays(sessions.crowded, usual, "--threads", str(most)),
        *_replays(sessions.main, usual, "--file", PACKAGE),
    ]
    others = [_replays(sessions.main, n) for n in other_thread_counts(usual) if n > 1]
    alone = sessions.taken(single, _replays, 1) if single else ()
    return (*found, *alone, *(replay for some in others for replay in some))


def _replays(session: Session, intra_op: int, *options: str) -> tuple[Replay, ...]:
    own = ["--repeat", "1", "--intra-op", str(intra_op), *session.tolerances()]
    ended = session.run("replay", [*options, *own], f"{intra_op}")
    lines = [{**line, "intra_op": intra_op} for line in ended.lines]
    return told(Replay, replace(ended, lines=tuple(lines)), "replayed")


def _try(session: Session, hostile: Sequence[str], options: Sequence[str]) -> Tried:
    own = [*options, *session.tolerances()]

    def arguments(some: Sequence[str]) -> list[str]:
        return [*own, *(part for name in some for part in ("--hostile", name))]

    session.note("trial", arguments(hostile))
    return try_all(
        hostile,
        lambda some: session.call("trial", arguments(some)),
    )


def _watch_memory(session: Session) -> Growth | None:
    """Watch memory over many calls; None where nothing was told of it."""
    limits = session.limits
    options = [
        "--threads", "1", "--intra-op", "1", "--seconds", "0",
        "--calls", str(limits.growth_calls), "--growth-seconds", str(limits.growth_s),
    ]  # fmt: skip
    return next(iter(told(Growth, session.run("bench", options), "growth")), None)


def other_thread_counts(usual: int) -> tuple[int, ...]:
    """Return numbers of threads that a serving machine may use: one, and more than are here."""
    return tuple(count for count in (1, max(16, 2 * usual)) if count != usual)


def measure(job: MeasureJob) -> ProbeResult:
    """Return what the probe has found with what was measured, and with the whole verdict.

    Whatever the program does is a result, and what it doesn't tell a reason to refuse.
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
    ended = session.run("bench", options)
    packed = session.run("bench", ["--file", PACKAGE, "--calls", "2", "--seconds", "0"])
    openings = (*told(Opening, ended, "opened"), *told(Opening, packed, "opened"))
    return openings, told(Rate, ended, "rate")
