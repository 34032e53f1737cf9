"""What came of a model in a precision, in all of its processes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.studies.benchmarks.seeds.asked import PlayResult, read_record, write_record
from tests.studies.benchmarks.seeds.contestants import CROSS, EAGER, HANDOFF
from tests.studies.benchmarks.served.turns import Ratio


@dataclass(frozen=True)
class Measurement:
    """What each process saw, and who is missing, and why.

    `load` is the machine's before anything was made.
    """

    model: str
    batch: int
    precision: str
    device: str
    runs: int
    load: float
    played: tuple[PlayResult, ...]
    missing: dict[str, str]

    @property
    def contestants(self) -> tuple[str, ...]:
        """Who was timed in any process, in the order in which they were called."""
        return tuple(dict.fromkeys(name for one in self.played for name in one.seconds))

    def seconds(self, contestant: str) -> float:
        """Return the seconds of the timed calls, in the middle one of the processes."""
        return statistics.median(sum(one.seconds[contestant]) for one in self.played
                                 if contestant in one.seconds)  # fmt: skip

    def apart(self, contestant: str) -> float:
        """Return the largest difference to eager's outputs."""
        return max(one.apart[contestant] for one in self.played if contestant in one.apart)

    def ratios(self, contestant: str, over: str = EAGER) -> list[Ratio]:
        """Return how many times as fast as `over` it was, for each process that timed both."""
        return [Ratio.of(one.seconds[over], one.seconds[contestant]) for one in self.played
                if {over, contestant} <= one.seconds.keys()]  # fmt: skip

    def fastest(self) -> str | None:
        """Return the fastest of Handoff's variants that were made here, as a search would."""
        own = [name for name in self.contestants
               if name.startswith(HANDOFF) and not name.startswith(CROSS)]  # fmt: skip
        return max(own, key=lambda name: Ratio.across(self.ratios(name)).value, default=None)


def geometric_mean(rows: Sequence[Sequence[Ratio]]) -> Ratio:
    """Return the geometric mean over the rows, a model's each, of which there has to be one.

    The first processes of all models are one observation, the second ones another.
    """
    together = [statistics.geometric_mean(one.value for one in each) for each in zip(*rows)]  # noqa: B905 - a process may be missing
    return Ratio.across(Ratio(value, value, value) for value in together)


@dataclass(frozen=True)
class _MeasurementFile:
    all: tuple[Measurement, ...]


def keep(measured: Sequence[Measurement], path: Path) -> None:
    """Write what was measured."""
    write_record(path, _MeasurementFile(tuple(measured)))


def read_kept(path: Path) -> list[Measurement]:
    """Return what was measured before; nothing where there is no such file."""
    return list(read_record(_MeasurementFile, path).all) if path.exists() else []


def add(measured: Measurement, kept: list[Measurement]) -> None:
    """Put it in the place of an older one of the same model, precision and device."""

    def key(one: Measurement) -> tuple[str, ...]:
        return one.model, one.precision, one.device

    kept[:] = [*(one for one in kept if key(one) != key(measured)), measured]
