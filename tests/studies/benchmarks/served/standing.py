"""What is kept of a model's races: how fast each competitor was, and beside what."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handoff.artifacts.record import from_plain, to_plain
from tests.studies.benchmarks.served.conditions import Conditions, conditions_now
from tests.studies.benchmarks.served.race import HANDOFF, OURS
from tests.studies.benchmarks.served.turns import Race, Ratio

EAGER = "eager"
# Of an output's difference to eager's, times their RMS, by the precision that the recipes allow:
# float32's rounding stays a thousand times below, bfloat16's RMSE may be a tenth of it, and int8's,
# with ranges that a few batches showed, a few percent, of which one element may be ten times off.
ALLOWED = {"float32": 0.01, "bfloat16": 0.2, "int8": 0.5}


@dataclass(frozen=True)
class Standing:
    """One model's races, summarized.

    `eager_ms` is the median of a call's milliseconds, `over_eager` each competitor's speed in
    multiples of eager's, `handoff_over` Handoff's in multiples of each competitor's. `rounds` are
    those of each race, `others` the most cores that other processes kept busy during one, and
    `load` is the machine's before. `allowed` is the error, over the RMS of eager's outputs, that is
    wrong above. `chosen` are the variants of ours, by the name that they were raced by.
    """

    name: str
    kind: str
    conditions: Conditions
    batch: int
    rounds: tuple[int, ...]
    chosen: dict[str, str]
    eager_ms: float
    over_eager: dict[str, Ratio]
    handoff_over: dict[str, Ratio]
    error: dict[str, float]
    allowed: float
    failed: dict[str, str]
    others: float
    load: float

    @property
    def wrong(self) -> dict[str, float]:
        """Those whose outputs are not eager's, and by how much."""
        return {name: error for name, error in self.error.items() if not error <= self.allowed}

    @property
    def rivals(self) -> list[str]:
        """The competitors beside eager that are raced and not ours."""
        return [name for name in self.over_eager if name not in OURS]

    @property
    def best(self) -> str:
        """The fastest competitor that is not wrong, by its median."""
        speeds = {EAGER: 1.0} | {
            name: self.over_eager[name].value for name in self.rivals if name not in self.wrong
        }
        return max(speeds, key=lambda name: speeds[name])

    @property
    def against_best(self) -> Ratio | None:
        """Handoff's speed in multiples of the fastest competitor's; None where it has none."""
        return None if HANDOFF in self.wrong else self.handoff_over.get(self.best)


def read_standings(path: Path) -> dict[str, Standing]:
    """Return what was measured, by the models' names."""
    standings = (from_plain(Standing, one) for one in json.loads(path.read_text(encoding="utf-8")))
    return {one.name: one for one in standings}


def keep_standings(standings: Iterable[Standing], path: Path) -> None:
    """Write what was measured."""
    text = json.dumps([to_plain(one) for one in standings], indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def summarize(row: dict[str, Any], allowed: float) -> Standing:
    """Return what is kept of the row that a race has printed."""
    races = [Race(**race) for race in row["races"]]
    names = [name for name in races[0].seconds if all(name in race.seconds for race in races)]

    def ratio(slow: str, fast: str) -> Ratio:
        return Ratio.across(race.ratio(slow, fast) for race in races)

    return Standing(
        name=row["name"], kind=row["kind"], batch=row["batch"], chosen=row["chosen"],
        conditions=conditions_now(" and ".join(sorted(set(row["built"]))), row["threads"]),
        rounds=tuple(len(race.seconds[EAGER]) for race in races),
        eager_ms=statistics.median(race.median_s(EAGER) for race in races) * 1e3,
        over_eager={name: ratio(EAGER, name) for name in names if name != EAGER},
        handoff_over={
            name: ratio(name, HANDOFF) for name in names if HANDOFF in names and name != HANDOFF
        },
        error=row["error"], allowed=allowed, failed=row["failed"], load=row["load"],
        others=max(race.others for race in races),
    )  # fmt: skip
