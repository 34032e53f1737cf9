"""Three ways: an old package, a new one and eager, against float64 and call by call in turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from handoff.artifacts.delivery.metric import MeasuredMetric
from handoff.artifacts.record import added_field
from handoff.artifacts.release.interval import Interval, ratio
from handoff.artifacts.release.manifest import TargetRecord

Basis = Literal["measured", "recorded"]
Standing = Literal["better", "equal", "worse"]


@dataclass(frozen=True)
class PackageFigures:
    """What is known of the package of `version` for `target`; version 0 has no number yet.

    `basis` says whether error and speed were measured together with what they stand beside, or are
    those of the package's own record, and `why` says why they weren't measured. `rmse_ratio` is the
    largest RMSE of an output to float64, in multiples of eager's, and `speed` how many times as
    fast as eager it is at the largest timed input. Size and compile seconds are always the
    record's, `torch` is the one that it was built with, and `reused` what came from a cache. So is
    the delivery's `metric`.
    """

    target: str
    version: int
    basis: Basis
    torch: str
    rmse_ratio: float | None
    speed: Interval | None
    size_bytes: int
    compile_s: float
    reused: Literal["", "code", "package"] = ""
    why: str = ""
    metric: MeasuredMetric | None = added_field(None)

    @property
    def compiled_s(self) -> float | None:
        """The seconds of the compiler, all of whose work was done then; None otherwise."""
        return None if self.reused else self.compile_s or None


@dataclass(frozen=True)
class OutputErrors:
    """One output's RMSE to float64 over all ordinary inputs; None for a package that wasn't run.

    `apart` is the largest absolute difference between the old package and the new one.
    """

    output: str
    elements: int
    rmse_eager: float
    rmse_old: float | None
    rmse_new: float | None
    apart: float | None


@dataclass(frozen=True)
class InterleavedTiming:
    """Seconds a call of eager and both packages on one input, called in turns; None if not run.

    Medians over `rounds` rounds; the intervals say how many times as fast the first named one is.
    """

    case: str
    rounds: int
    threads: int
    eager_s: float
    old_s: float | None
    new_s: float | None
    new_to_old: Interval | None
    new_to_eager: Interval | None
    old_to_eager: Interval | None


@dataclass(frozen=True)
class SideBySide:
    """How many times as fast the second package is as the first, with a 95 % interval.

    The median of the rounds' own ratios; `sizes` names the input's shapes, or its case.
    `rmse_before` and `rmse_after` are both packages' errors to float64 in multiples of eager's,
    where they were measured on the same inputs; None else.
    """

    target: str
    sizes: str
    ratio: float
    low: float
    high: float
    threads: int
    rmse_before: float | None = added_field(None)
    rmse_after: float | None = added_field(None)

    def __str__(self) -> str:
        interval = Interval(self.ratio, self.low, self.high)
        if interval.is_known:
            text = f"{ratio(self.ratio)} times as fast as what it replaces ({interval.span})"
        elif interval.holds_one:
            text = f"whether it is faster than what it replaces is not known ({interval.span})"
        else:
            text = f"{interval.span} times as fast as what it replaces"
        text = f"{self.target}: {text}, in turns on {self.sizes}, {self.threads} threads"
        if self.rmse_before is None or self.rmse_after is None:
            return text
        errors = f"{self.rmse_after:.2f} times eager's, was {self.rmse_before:.2f}"
        return f"{text}; its error is {errors}"


@dataclass(frozen=True)
class Comparison:
    """How the new package for `target` compares with the old one, by a recipe's [promotion].

    `verdict` is `worse` where a rule is broken or its numbers are wrong, `better` where it is
    faster or closer to float64 by more than those rules let it be slower or further away, else
    `equal`; `reasons` say by what. `outputs` and `heats` hold what was measured; what a package
    could not be run for is as its record has it.
    """

    target: str
    old: PackageFigures
    new: PackageFigures
    outputs: tuple[OutputErrors, ...]
    heats: tuple[InterleavedTiming, ...]
    verdict: Standing
    reasons: tuple[str, ...]

    @property
    def is_measured(self) -> bool:
        """Return whether both packages were run, beside each other."""
        return self.old.basis == self.new.basis == "measured"

    @property
    def side_by_side(self) -> tuple[SideBySide, ...]:
        """What a promotion goes by, and its ledger keeps: one for each timed input."""
        if not self.is_measured:
            return ()
        return tuple(
            SideBySide(
                self.target, heat.case, speed.value, speed.low, speed.high, heat.threads,
                self.old.rmse_ratio, self.new.rmse_ratio,
            )
            for heat in self.heats
            if (speed := heat.new_to_old) is not None
        )  # fmt: skip


def recorded_figures(record: TargetRecord, version: int, why: str = "") -> PackageFigures:
    """Return a target's figures as its record has them."""
    timing = record.headline
    return PackageFigures(
        target=record.slug,
        version=version,
        basis="recorded",
        torch=record.fit.torch if record.fit else "",
        rmse_ratio=record.rmse_ratio,
        speed=timing.over_eager if timing else None,
        size_bytes=record.size_bytes,
        compile_s=record.compile_s,
        reused=record.reused,
        why=why,
        metric=record.metric,
    )
