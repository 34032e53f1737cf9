"""Probe: the mechanical blessing. A program without Python calls and ill-treats a package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from artifacts.mechanics import (
    Growth,
    Mechanics,
    Opening,
    Rate,
    Replay,
    Trial,
    is_survived,
)
from artifacts.probes import ProbeJob, ProbeResult
from artifacts.record import from_plain
from tasks.loading import PACKAGE
from tasks.probing.build import build_runner
from tasks.probing.child import Ended, run_limited
from tasks.probing.golden import write_cases, write_trial_release
from tasks.probing.hostile import describe_hostile
from tasks.probing.trials import Tried, try_all

THREADS = (1, 2, 8)
# Memory that a package may come to hold for good while it is called: what an allocator keeps.
_GROWTH_BYTES = 4 << 20
_GROWTH_SHARE = 0.01

T = TypeVar("T")


def run(job: ProbeJob) -> ProbeResult:
    """Replay golden inputs from several threads, feed hostile ones, and measure time and memory.

    The packages are run by the C++ runner alone, in processes with limits; what Python's loader
    gives is the measure. Raises `EnvironmentLacking` where the runner can't be built; whatever the
    runner does is a result, and a check that could not run a reason to refuse.
    """
    program, build_s = build_runner(job.source, job.programs)
    job.workspace.mkdir(parents=True, exist_ok=True)
    release, cases = job.workspace / "release", job.workspace / "cases.safetensors"
    write_trial_release(job, release)
    written = write_cases(job, release, cases)
    probe = _Probe(job, program, release, cases)
    replays = probe.replay()
    openings, growth, rates = probe.measure()
    trials = probe.try_hostile(written.sizes)
    notes = []
    if written.left_out:
        notes.append(f"{written.left_out} larger cases were run by Python alone")
    notes += [
        f"{replay.different} of {replay.calls} calls of {replay.file} from {replay.threads} threads"
        f" with {replay.intra_op} a call gave other bits than Python with {torch.get_num_threads()}"
        for replay in replays
        if replay.different
    ]
    mechanics = Mechanics(
        written.names[0],
        replays,
        openings,
        rates,
        growth,
        trials,
        tuple(probe.commands),
        tuple(notes),
    )
    reasons = (*probe.failures, *judge(mechanics))
    return ProbeResult(mechanics, reasons, program, build_s)


@dataclass
class _Probe:
    """One package under probe: runs the program, and keeps what could not be run."""

    job: ProbeJob
    program: Path
    release: Path
    cases: Path

    def __post_init__(self) -> None:
        self.failures: list[str] = []
        self.commands: list[str] = []

    def replay(self) -> tuple[Replay, ...]:
        """Compare from 1, 2 and 8 threads, then the `.pt2`, then with other threads for a call.

        With as many threads for a call as Python's, the bits are Python's. With others sums are
        added up in another order; and code that was compiled for a number may not bear another.
        """
        usual, threads = torch.get_num_threads(), ",".join(map(str, THREADS))
        plans = [
            (usual, ["--threads", threads, "--repeat", "2"]),
            (usual, ["--file", PACKAGE, "--repeat", "1"]),
            *((other, ["--repeat", "2"]) for other in other_thread_counts(usual)),
        ]
        found: list[Replay] = []
        for intra_op, options in plans:
            own = ["--intra-op", str(intra_op)]
            ended = self._run("replay", [*options, *own, *self._tolerances()], f"{intra_op}")
            told = [{**line, "intra_op": intra_op} for line in ended.lines]
            found += _told(Replay, replace(ended, lines=tuple(told)), "replayed")
        return tuple(found)

    def measure(self) -> tuple[tuple[Opening, ...], Growth | None, tuple[Rate, ...]]:
        """Time the opening, the first call and many; watch memory over the many."""
        limits = self.job.limits
        options = [
            "--threads", ",".join(map(str, THREADS)), "--intra-op", "1", "--seconds", "0.7",
            "--calls", str(limits.growth_calls), "--growth-seconds", str(limits.growth_s),
        ]  # fmt: skip
        ended = self._run("bench", options)
        growth = _told(Growth, ended, "growth")
        packed = self._run("bench", ["--file", PACKAGE, "--calls", "2", "--seconds", "0"])
        openings = (*_told(Opening, ended, "opened"), *_told(Opening, packed, "opened"))
        return openings, growth[0] if growth else None, _told(Rate, ended, "rate")

    def try_hostile(self, sizes: Mapping[str, int]) -> tuple[Trial, ...]:
        """Feed every hostile input to the package alone, then to the checked entry."""
        on_gpu = self.job.fit.gpu_capability > 0
        hostile = describe_hostile(self.job.signature, sizes, on_gpu=on_gpu)
        alone = self._try(hostile, ["--unchecked"])
        checked = self._try(hostile, [])
        return tuple(
            Trial(name, alone[name][0], checked[name][0], alone[name][1]) for name in hostile
        )

    def _try(self, hostile: Sequence[str], options: Sequence[str]) -> Tried:
        own = [*options, *self._tolerances()]

        def arguments(some: Sequence[str]) -> list[str]:
            return [*own, *(part for name in some for part in ("--hostile", name))]

        self.commands.append(_repeat("trial", self.job.folder.name, arguments(hostile)))
        return try_all(
            hostile,
            lambda some: run_limited(
                self.program, self._arguments("trial", arguments(some)), self.job.limits
            ),
        )

    def _run(self, command: str, options: Sequence[str], threads: str = "1") -> Ended:
        ended = run_limited(self.program, self._arguments(command, options), self.job.limits)
        self.commands.append(_repeat(command, self.job.folder.name, options))
        if ended.outcome is not None:
            told = f"{ended.outcome}: {ended.told}"
            self.failures.append(f"{command} of good inputs, {threads} threads a call: {told}")
        return ended

    def _arguments(self, command: str, options: Sequence[str]) -> list[str]:
        where = [str(self.release), str(self.cases), "--target", self.job.folder.name]
        # Nothing is signed before it was accepted.
        return [command, *where, "--unsigned", *options]

    def _tolerances(self) -> list[str]:
        options = []
        for dtype in ("float64", "float32", "float16", "bfloat16"):
            agreed = self.job.recipe.tolerance_for(dtype)
            options += ["--tolerance", f"{dtype}={agreed.atol!r},{agreed.rtol!r}"]
        return options


def other_thread_counts(usual: int) -> tuple[int, ...]:
    """Return numbers of threads that a serving machine may use: one, and more than are here."""
    return tuple(count for count in (1, max(16, 2 * usual)) if count != usual)


def _told(kind: type[T], ended: Ended, event: str) -> tuple[T, ...]:
    """Return the records of one kind that the program printed, whose fields are the line's."""
    wanted = set(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    return tuple(
        from_plain(kind, {name: value for name, value in line.items() if name in wanted})
        for line in ended.lines
        if line.get("event") == event
    )


def _repeat(command: str, slug: str, options: Sequence[str]) -> str:
    return " ".join(["handoff-runner", command, "RELEASE CASES --key KEY --target", slug, *options])


def judge(found: Mechanics) -> list[str]:
    """Return the reasons to refuse: what was wrong, what grew, what can't be survived.

    Memory leaks where all through the last quarter of the calls more was held than ever in their
    first half, by more than 4 MiB and 1 % of what was resident: an allocator takes what it then
    keeps, and hands some back and takes it again.
    """
    reasons = [
        f"{replay.file} gave other outputs in C++ than in Python in {replay.beyond_tolerance} of "
        f"{replay.calls} calls from {replay.threads} threads with {replay.intra_op} a call, by up "
        f"to {replay.max_abs:.3g}"
        for replay in found.replays
        if replay.beyond_tolerance
    ]
    reasons += [f"nothing was told of {what}" for what in _not_told(found)]
    growth = found.growth
    if growth is not None and growth.second_half_bytes > max(
        _GROWTH_BYTES, _GROWTH_SHARE * growth.resident_bytes
    ):
        reasons.append(
            f"memory grew by {growth.second_half_bytes / 2**20:.1f} MiB over the second half of "
            f"{growth.calls} calls: it leaks"
        )
    for trial in found.trials:
        if "not run" in (trial.package, trial.guarded):
            reasons.append(f"the input {trial.hostile} could not be tried: {trial.told}")
        elif not is_survived(trial.hostile, trial.guarded):
            reasons.append(
                f"the input {trial.hostile} is {trial.guarded} by the checked entry, too, and "
                f"{trial.package} by the package: {trial.told}"
            )
    return reasons


def _not_told(found: Mechanics) -> list[str]:
    counts = {
        "replays": (len(found.replays), len(THREADS) + 2),
        "openings": (len(found.openings), 2),
        "memory": (int(found.growth is not None), 1),
        "calls a second": (len(found.rates), len(THREADS)),
        "hostile inputs": (len(found.trials), 1),
    }
    return [f"{what} ({got} of {wanted})" for what, (got, wanted) in counts.items() if got < wanted]
