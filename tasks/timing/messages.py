"""The jobs of timing and comparing packages beside each other, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.record import Job, added_field
from handoff.artifacts.release.comparison import Comparison, SideBySide
from handoff.artifacts.release.evidence import Timing
from handoff.artifacts.release.manifest import TargetRecord


@dataclass(frozen=True)
class SideBySideJob(Job[SideBySide]):
    """Time two pulled releases' packages for `target`, call by call in turns, on one example.

    `folders` are the one that is served and the one that may replace it, whose first example is
    taken; `keys` are the places of the public keys that have signed them.
    """

    folders: tuple[Path, ...]
    target: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class ThreeWayJob(Job[Comparison]):
    """Compare the packages for `target` in the release folders `old` and `new`, beside eager.

    A release's folder is a pulled one, or the one that a build has made; `old` is None where it
    could not be had. `before` and `after` are the targets' records, `old_version` and
    `new_version` their versions (0: none yet). `staging` is the delivery, `reference` the file of
    its reference on the input plan, and `outputs` are the outputs' names, which tolerances may go
    by. The rules are those of `recipe`.
    """

    target: str
    old: Path | None
    new: Path
    before: TargetRecord
    after: TargetRecord
    staging: Path
    reference: Path
    recipe: Recipe
    outputs: tuple[str, ...] = ()
    old_version: int = 0
    new_version: int = 0
    old_missing: str = added_field("")


@dataclass(frozen=True)
class BenchmarkJob(Job["BenchmarkResult"]):
    """Time the packages in `folder` against the delivered module in `staging`, interleaved.

    Both run where packages of the target of the slug `target` do; '' is the CPU.
    """

    staging: Path
    folder: Path
    reference: Path
    target: str = ""


@dataclass(frozen=True)
class BenchmarkResult:
    """One timing per case, smallest first.

    `apart` is the largest difference of the package to eager on the device that both were timed on.
    """

    timings: tuple[Timing, ...]
    apart: float = 0.0


@dataclass(frozen=True)
class RaceJob(Job["RaceResult"]):
    """Time the packages in `folders`, the plain one first, call by call in turns."""

    folders: tuple[Path, ...]
    reference: Path


@dataclass(frozen=True)
class RaceLap:
    """One package's median seconds on each timed input, and the plain one's time by its own."""

    times_s: tuple[float, ...]
    ratios: tuple[float, ...]
    ratios_low: tuple[float, ...]
    ratios_high: tuple[float, ...]


@dataclass(frozen=True)
class RaceResult:
    """One lap for each of the job's folders."""

    laps: tuple[RaceLap, ...]
