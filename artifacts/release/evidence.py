"""What every claim about a release rests on: findings, verdicts, deviations, timings, graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from handoff.artifacts.delivery.metric import MeasuredMetric
from handoff.artifacts.digest import Digest
from handoff.artifacts.record import added_field
from handoff.artifacts.release.interval import Interval

INPUTS, OUTPUTS, MODEL = "(inputs)", "(outputs)", "(model)"


@dataclass(frozen=True)
class FoldedModule:
    """One box: a module's path, how often each operator occurs in it, and which boxes it feeds.

    `operators` are the most frequent ones, by name; further kinds are counted as `other`. `feeds`
    are places in the graph's `modules`. `(inputs)` and `(outputs)` hold no operators but names.
    """

    path: str
    operators: dict[str, int]
    feeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class FoldedGraph:
    """The boxes of one graph in the order of their first operators; `nodes` were folded."""

    nodes: int
    modules: tuple[FoldedModule, ...]


@dataclass(frozen=True)
class FoldedGraphs:
    """The graph as it was delivered, and as it was given to the compiler.

    Paths are cut to the same depth in both, and in what each pass changed.
    """

    delivered: FoldedGraph
    compiled: FoldedGraph


Severity = Literal["note", "limit", "unsound"]
Verdict = Literal["sound", "sound within limits", "unsound"]
Goal = Literal["all", "latency", "example", "throughput"]

# How the name of the case ends that is the delivery's first example.
EXAMPLE = "example=0"
# From so many processors on, other work is the first thing to be blamed for an unclear timing.
BUSY = 0.25

# Which of the timed inputs a goal looks at: the smallest, the delivery's example, the largest.
_SIZES = {
    "all": slice(None), "latency": slice(1), "example": slice(1, 2), "throughput": slice(-1, None),
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing noticed about a delivery: what it is, where, what it means and what to do.

    A `note` changes nothing, a `limit` narrows what the release may be used for, and `unsound`
    means that the delivery would not compute what was trained.
    """

    code: str
    severity: Severity
    message: str
    remedy: str
    where: str = ""


def judge(findings: tuple[Finding, ...]) -> Verdict:
    """Return the verdict that the gravest of the findings asks for."""
    severities = {finding.severity for finding in findings}
    if "unsound" in severities:
        return "unsound"
    return "sound within limits" if "limit" in severities else "sound"


@dataclass(frozen=True)
class ModuleChange:
    """How many operators of each kind a pass took out of a module, and put in."""

    path: str
    removed: dict[str, int]
    added: dict[str, int]


@dataclass(frozen=True)
class PassEffect:
    """What one pass did: nodes before and after, and how far the outputs moved in float64.

    `left_out` is the reason why a pass was taken back that broke the tolerance, and `notes` what
    it did that a person should know of. `changes` are those of the graph, by module.
    """

    name: str
    level: Literal["fx", "aten"]
    modified: bool
    nodes_before: int
    nodes_after: int
    max_abs: float = 0.0
    intended: bool = False
    left_out: str = added_field("")
    notes: tuple[str, ...] = added_field(())
    changes: tuple[ModuleChange, ...] = added_field(())


@dataclass(frozen=True)
class Timing:
    """Seconds per call of eager and of the package on the same input, interleaved.

    Medians over `rounds` rounds of both; `speedup` is the median of the rounds' own ratios
    eager / package, with a 95 % interval from the order statistics of those ratios. The seconds'
    own intervals are found alike; 0 where a record is older than they are. `others` is how many
    processors the machine's other work took meanwhile; None where a record is older than that.
    """

    case: str
    eager_s: float
    package_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    rounds: int
    threads: int
    eager_low_s: float = added_field(0.0)
    eager_high_s: float = added_field(0.0)
    package_low_s: float = added_field(0.0)
    package_high_s: float = added_field(0.0)
    others: float | None = added_field(None)

    @property
    def over_eager(self) -> Interval:
        """How many times as fast as eager the package is."""
        is_blurred = self.others is not None and self.others >= BUSY
        return Interval(self.speedup, self.speedup_low, self.speedup_high, is_blurred)

    @property
    def is_example(self) -> bool:
        """Return whether the input is the delivery's first example."""
        return self.case.endswith(EXAMPLE)


def why_unknown(timings: Sequence[Timing]) -> str:
    """Return at which inputs the speed is not known, why, and what to do; '' where all are."""
    unknown = [one for one in timings if not one.over_eager.is_known]
    if not unknown:
        return ""
    others = [one.others for one in unknown if one.others is not None and one.others >= BUSY]
    why = "calls differ from each other by more than the two do"
    if others:
        why = f"other work took {max(others):.1f} processors meanwhile"
    at = ", ".join(f"{one.case} ({one.over_eager.span} times eager's speed)" for one in unknown)
    sentence = f"how fast it is at {at} is not known: {why}"
    return f"{sentence}; release it with --rebuild on a quiet machine"


def headline_of(timings: Sequence[Timing]) -> Timing | None:
    """Return the timing that stands for all: the delivered example's, else the last, the largest's.

    None of none.
    """
    last = timings[-1] if timings else None
    return next((timing for timing in timings if timing.is_example), last)


@dataclass(frozen=True)
class EarlierMeasurement:
    """An earlier package of the same code, from which timings and mechanics are taken over.

    `library` is the digest of its `model.so`, `measured` the UTC time at which that was done. It
    had the same inputs, recipe, machine and toolchain; it may have had other weights.
    """

    library: Digest
    measured: str

    @property
    def text(self) -> str:
        """The sentence that stands beside what was taken over."""
        return (
            f"timings, memory and hostile inputs are those of model.so {self.library.short}, which "
            f"has the same code and was measured on {self.measured}; 'handoff release --rebuild' "
            "measures again"
        )


@dataclass(frozen=True)
class ServedTiming:
    """How fast a package was when it was released: eager's time by its own, on one input.

    It was timed on another day, and maybe on another machine: its ratio is beside a release's own
    for a look. A promotion times both versions in turns.
    """

    target: str
    case: str
    speedup: float
    speedup_low: float
    speedup_high: float
    is_blurred: bool = added_field(False)

    @property
    def over_eager(self) -> Interval:
        """How many times as fast as eager the package is."""
        return Interval(self.speedup, self.speedup_low, self.speedup_high, self.is_blurred)


@dataclass(frozen=True)
class ServedVersion:
    """The version that was in production when another one was released.

    `changed` says in words what the new one was made from that is other than in that version.
    """

    version: int
    changed: tuple[str, ...]
    timings: tuple[ServedTiming, ...]


@dataclass(frozen=True)
class Candidate:
    """A variant of a package that was tried, and what happened to it.

    `times_s` are the medians of its seconds a call on the timed inputs (the plan's smallest, the
    delivery's first example, the plan's largest; records before 2026-11-22 have no example),
    `ratios` the plain package's time by its own in the same round, with a 95 % interval each.
    `reasons` say why one is out of the running: it crashed, broke the tolerance, fixed a dimension,
    or there was no time.
    `effects` are those of the passes that it has beyond the recipe's, `metric` what it loses of
    the delivery's own.
    """

    name: str
    accepted: bool
    reasons: tuple[str, ...] = ()
    compile_s: float = 0.0
    size_bytes: int = 0
    max_abs: float = 0.0
    times_s: tuple[float, ...] = ()
    ratios: tuple[float, ...] = ()
    ratios_low: tuple[float, ...] = ()
    ratios_high: tuple[float, ...] = ()
    effects: tuple[PassEffect, ...] = added_field(())
    metric: MeasuredMetric | None = added_field(None)

    def is_faster(self, goal: Goal = "all") -> bool:
        """Return whether it is significantly faster than the plain one somewhere, never slower."""
        sizes = _SIZES[goal]
        return (
            bool(self.ratios)
            and any(low > 1.0 for low in self.ratios_low[sizes])
            and all(high >= 1.0 for high in self.ratios_high[sizes])
        )

    def speed(self, goal: Goal = "all") -> float:
        """Return the geometric mean of the ratios that a goal looks at; 0 for one not timed."""
        ratios = self.ratios[_SIZES[goal]]
        return math.prod(ratios) ** (1 / len(ratios)) if ratios else 0.0


def choose(candidates: tuple[Candidate, ...], goal: Goal = "all") -> Candidate:
    """Return the one to release: the fastest significantly faster one, else the first, plain."""
    faster = [one for one in candidates[1:] if one.accepted and one.is_faster(goal)]
    return max(faster, key=lambda one: one.speed(goal), default=candidates[0])


def pareto(candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Return the timed ones that no other one equals or beats in everything.

    That is speed, error, size and compile time; of equal ones the first counts.
    """
    timed = [one for one in candidates if one.ratios]

    def cost(one: Candidate) -> tuple[float, ...]:
        return (-one.speed(), one.max_abs, float(one.size_bytes), one.compile_s)

    return tuple(
        one
        for place, one in enumerate(timed)
        if not any(
            all(a <= b for a, b in zip(cost(other), cost(one), strict=True))
            and (cost(other) != cost(one) or timed.index(other) < place)
            for other in timed
            if other is not one
        )
    )


# What running kernels' sources leaves open, said wherever a page says that they were run.
NOT_SHOWN_BY_SOURCE = (
    "not shown by that: the machine code that was made of them, cuBLAS and cuDNN, races between "
    "threads, speed"
)
SOURCE_LEVEL = "kernels checked at source level"


@dataclass(frozen=True)
class TorchCheck:
    """How a package did in a torch that didn't build it, compared as in its own.

    `version` is that torch's. It `is_right` where the gate accepted it there, over `comparisons`
    of outputs, `max_abs` being the largest difference from eager on ordinary inputs (None without
    any); else `why` says what it was refused for, or why it doesn't load, in that torch's words.
    """

    version: str
    is_right: bool
    comparisons: int = 0
    max_abs: float | None = None
    why: str = ""

    @property
    def text(self) -> str:
        """What was seen, in a sentence."""
        if not self.is_right:
            return f"not right with torch {self.version}: {self.why}"
        apart = "" if self.max_abs is None else f", at most {self.max_abs:.2g} from eager"
        seen = f"{self.comparisons} comparisons{apart}"
        return f"seen to be right with torch {self.version}, too: {seen}"


@dataclass(frozen=True)
class SourceCheck:
    """What running the sources of a package's kernels without their GPU has shown.

    `kernels` are those that were run, each with the digest of its source, which is that of the
    kernel in the package; `unrun` those that no case has launched. `cases` are the inputs that were
    compared with eager, `unasked` counts those of the plan that were left out, for their size.
    `max_abs` is the largest difference from eager on ordinary inputs. `external` are what the
    program calls beside its kernels, which ATen did on the CPU.
    """

    kernels: dict[str, str]
    cases: tuple[str, ...]
    max_abs: float
    programs: int
    unrun: tuple[str, ...] = ()
    unasked: int = 0
    external: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What was shown, and what wasn't, in a sentence."""
        count = len(self.kernels)
        kernels = f"{count} kernel" if count == 1 else f"{count} kernels"
        unrun = f" ({len(self.unrun)} more were launched by no case)" if self.unrun else ""
        cases = f"{len(self.cases)} of the plan's {len(self.cases) + self.unasked} cases"
        return (
            f"{SOURCE_LEVEL}: the sources of {kernels}{unrun} were run by "
            f"Triton's interpreter at {cases}, and differ from eager by at most "
            f"{self.max_abs:.2g}; {NOT_SHOWN_BY_SOURCE}"
        )
