"""What a program without Python makes of a package: the evidence of the mechanical gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from handoff.artifacts.record import added_field

Outcome = Literal[
    "refused", "answered", "answered alike", "harmed", "crashed", "hung", "out of memory", "not run"
]

GIB = 1 << 30


@dataclass(frozen=True)
class RunnerLimits:
    """What a runner process may take: bytes of address space, and seconds for one answer.

    `memory_bytes` of 0 sets no limit, which a GPU's driver needs: it reserves far more than it
    uses. `growth_s` bounds the seconds for which memory is watched over `growth_calls` calls.
    """

    memory_bytes: int = 64 * GIB
    answer_s: float = 120.0
    growth_calls: int = 10_000
    growth_s: float = 5.0


USUAL_LIMITS = RunnerLimits()


@dataclass(frozen=True)
class Replay:
    """The golden inputs from several threads at once, compared with what Python got.

    `threads` called at once, each with `intra_op` threads for a call of its own. `different` calls
    gave other bits, `beyond_tolerance` of them further off than was agreed.
    """

    file: str
    threads: int
    intra_op: int
    cases: int
    calls: int
    different: int
    beyond_tolerance: int
    max_abs: float


@dataclass(frozen=True)
class Opening:
    """Seconds to check the file's digest, to open it and for the first call; bytes of memory.

    `libtorch_bytes` were resident before the file was opened, `opened_bytes` came with it.
    """

    file: str
    check_s: float
    open_s: float
    first_call_s: float
    libtorch_bytes: int
    opened_bytes: int
    resident_bytes: int


@dataclass(frozen=True)
class Rate:
    """Calls a second of so many threads, each with a runner and one thread for each call."""

    threads: int
    calls_per_s: float


@dataclass(frozen=True)
class Growth:
    """How much the resident memory grew over so many calls, in bytes.

    `first_half_bytes` is the most that was held in the first half beyond the beginning;
    `second_half_bytes` the least that was held in the last quarter beyond that most, below 0 where
    memory comes and goes.
    """

    calls: int
    seconds: float
    first_half_bytes: int
    second_half_bytes: int
    resident_bytes: int


@dataclass(frozen=True)
class Trial:
    """What happened to one input that had to be an error.

    `package` is what the package did with it alone, `guarded` what the checked entry did, and
    `told` the package's own words or the signal that ended it.
    """

    hostile: str
    package: Outcome
    guarded: Outcome
    told: str = ""

    @property
    def needs_guard(self) -> bool:
        """Return whether the package alone doesn't refuse it."""
        return not is_survived(self.hostile, self.package)


def is_survived(hostile: str, outcome: Outcome) -> bool:
    """Return whether a caller lives on with nothing wrong: it was refused, or rightly answered.

    Gaps in memory, and another order there, change no value: the right answer to it is one.
    """
    is_same = hostile.endswith((":strided", ":turned"))
    return outcome == "refused" or (outcome == "answered alike" and is_same)


@dataclass(frozen=True)
class Mechanics:
    """What was measured: the evidence of the mechanical gate.

    `case` is the input that was timed and made hostile. `commands` repeat the checks: RELEASE is
    the pulled folder, CASES a file such as its examples.
    """

    case: str = ""
    replays: tuple[Replay, ...] = ()
    openings: tuple[Opening, ...] = ()
    rates: tuple[Rate, ...] = ()
    growth: Growth | None = None
    trials: tuple[Trial, ...] = ()
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = added_field(())

    @property
    def guards(self) -> tuple[str, ...]:
        """The inputs that only the checked entry refuses."""
        return tuple(trial.hostile for trial in self.trials if trial.needs_guard)
