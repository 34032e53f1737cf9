"""What is told of the races: one line a model, and what follows from all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.benchmarks.served.race import HANDOFF
from tests.benchmarks.served.turns import Ratio

_EAGER = "eager"
# Of an output's difference to eager's, times their RMS, by the precision that the recipes allow:
# float32's rounding stays a thousand times below, and bfloat16's RMSE may be a tenth of it.
ALLOWED = {"float32": 0.01, "bfloat16": 0.2}


@dataclass(frozen=True)
class Standing:
    """One model's race, summarized.

    `eager_ms` is the median of a call's milliseconds, `over_eager` each competitor's speed in
    multiples of eager's, `handoff_over` Handoff's in multiples of each competitor's, `day` when it
    was measured (ISO 8601). `allowed` is the error, over the RMS of eager's outputs, that is wrong
    above.
    """

    name: str
    kind: str
    day: str
    batch: int
    rounds: int
    chosen: str
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
        return {name: error for name, error in self.error.items() if error > self.allowed}

    @property
    def best(self) -> str:
        """The fastest competitor that is not wrong, by its median."""
        others = (n for n in self.over_eager if n != HANDOFF and n not in self.wrong)
        rivals = {name: self.over_eager[name].value for name in others}
        rivals[_EAGER] = 1.0
        return max(rivals, key=lambda name: rivals[name])

    @property
    def against_best(self) -> Ratio | None:
        """Handoff's speed in multiples of the fastest competitor's; None where it has none."""
        return self.handoff_over.get(self.best)


def table_of(standings: list[Standing]) -> list[str]:
    """Return the table in Markdown."""
    names = [n for n in _competitors(standings) if n != HANDOFF]
    head = ["model", "batch", "eager ms", *names, HANDOFF, "variant", "against the best"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(names) + 3) + "---|---|"]
    for one in standings:
        cells = [_cell(one, name) for name in [*names, HANDOFF]]
        against = f"{one.against_best} {one.best}" if one.against_best else "-"
        row = [one.name, str(one.batch), f"{one.eager_ms:.2f}", *cells, one.chosen or "-", against]
        lines.append(f"| {' | '.join(row)} |")
    means = [_mean(standings, name) for name in [*names, HANDOFF]]
    lines.append(f"| **geometric mean** | | | {' | '.join(means)} | | |")
    return lines


def verdict_of(standings: list[Standing]) -> list[str]:
    """Return the sentences that the goals are about."""
    known = [one for one in standings if one.against_best]
    ratios = {one.name: one.against_best for one in known}
    slower = [name for name, ratio in ratios.items() if ratio and ratio.high < 1.0]
    faster = [name for name, ratio in ratios.items() if ratio and ratio.low > 1.0]
    below = [
        one.name for one in known
        if HANDOFF in one.over_eager and one.over_eager[HANDOFF].high < 1.0
    ]  # fmt: skip
    even = len(known) - len(slower) - len(faster)
    return [
        f"At least as fast as the best competitor: {len(faster) + even} of {len(standings)} models "
        f"(faster for sure: {len(faster)}; no difference larger than the noise: {even}). "
        f"Slower for sure: {', '.join(slower) or 'none'}.",
        f"Slower than eager for sure: {', '.join(below) or 'none'}.",
    ]


def failures_of(standings: list[Standing]) -> list[str]:
    """Return a line for each competitor that is missing somewhere, or wrong."""
    missing = [
        f"- {one.name}, {name}: {why.replace('|', '/')[:160]}"
        for one in standings for name, why in one.failed.items()
    ]  # fmt: skip
    return missing + [
        f"- {one.name}, {name}: wrong by {error:.2g} times the RMS of eager's outputs"
        for one in standings for name, error in one.wrong.items()
    ]  # fmt: skip


def _competitors(standings: list[Standing]) -> list[str]:
    return list(dict.fromkeys(name for one in standings for name in one.over_eager))


def _cell(one: Standing, name: str) -> str:
    ratio = one.over_eager.get(name)
    if name in one.wrong:
        return "wrong"
    return "-" if ratio is None else f"{ratio.value:.2f}" if ratio.is_told else "="


def _mean(standings: list[Standing], name: str) -> str:
    """Return the geometric mean over the models that have all competitors, so that all compare."""
    everyone = {*_competitors(standings), HANDOFF}
    whole = [
        one for one in standings
        if all(n in one.over_eager for n in everyone) and not one.wrong
    ]  # fmt: skip
    logs = [math.log(one.over_eager[name].value) for one in whole]
    return f"**{math.exp(sum(logs) / len(logs)):.2f}**" if logs else "-"
