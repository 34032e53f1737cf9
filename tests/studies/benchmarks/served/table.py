"""What is reported of the races: one line a model, and what follows from all of them."""

from __future__ import annotations

import math

from tests.studies.benchmarks.served.race import HANDOFF, OURS
from tests.studies.benchmarks.served.standing import EAGER, Standing
from tests.studies.benchmarks.served.turns import QUIET_CORES


def table_of(standings: list[Standing]) -> list[str]:
    """Return the table in Markdown."""
    names = _columns(standings)
    head = ["model", "batch", "eager ms", *names, "variant", "against the best", "busy elsewhere"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(names) + 2) + "---|---|---:|"]
    for one in standings:
        cells = [_cell(one, name) for name in names]
        against = f"{one.against_best} {one.best}" if one.against_best else "-"
        variant = one.chosen.get(HANDOFF, "-")
        row = [one.name, str(one.batch), f"{one.eager_ms:.2f}", *cells, variant, against,
               f"{one.others:.2f}"]  # fmt: skip
        lines.append(f"| {' | '.join(row)} |")
    compared = _compared(standings)
    means = " | ".join(_mean(compared, name) for name in names)
    lines.append(
        f"| **geometric mean of the {len(compared)} that all serve** | | | {means} | | | |"
    )
    return lines


def noise_of(standings: list[Standing]) -> str:
    """Return the sentence on what else the machine did, and how long the races were."""
    rounds = [count for one in standings for count in one.rounds]
    loads = [one.load for one in standings]
    races = sorted({len(one.rounds) for one in standings})
    return (
        f"{_range(races)} races of {_range(rounds)} rounds each. Busy elsewhere: the cores that "
        f"other processes kept busy, in the race in which these were most; races with more than "
        f"{QUIET_CORES} are repeated up to twice, and the quietest count. The machine's load "
        f"before (one minute, this benchmark's own included): {_range(loads, '.1f')}."
    )


def verdict_of(standings: list[Standing]) -> list[str]:
    """Return the sentences that the goals are about."""
    raced = [one for one in standings if HANDOFF in one.over_eager]
    below = [one.name for one in raced if one.over_eager[HANDOFF].high < 1.0]
    sentences = [f"Significantly slower than eager: {', '.join(below) or 'none'}."]
    # Against eager alone there is no best to be judged by.
    return (
        [_against_best(standings), *sentences]
        if any(one.rivals for one in standings)
        else sentences
    )


def failures_of(standings: list[Standing]) -> list[str]:
    """Return a line for each competitor that is missing somewhere, or wrong."""
    missing = [
        f"- {one.name}, {name}: {why.replace('|', '/')}"
        for one in standings for name, why in one.failed.items()
    ]  # fmt: skip
    return missing + [
        f"- {one.name}, {name}: {_describe_error(error)}"
        for one in standings for name, error in one.wrong.items()
    ]  # fmt: skip


def _against_best(standings: list[Standing]) -> str:
    ratios = {one.name: one.against_best for one in standings if one.against_best}
    slower = [name for name, ratio in ratios.items() if ratio.high < 1.0]
    faster = [name for name, ratio in ratios.items() if ratio.low > 1.0]
    ahead = [name for name, ratio in ratios.items() if ratio.value >= 1.0]
    even, models = len(ratios) - len(slower) - len(faster), len(standings)
    return (
        f"Not significantly slower than the best competitor: {len(faster) + even} of {models} "
        f"models (significantly faster: {len(faster)}; "
        f"no difference larger than the noise: {even}). "
        f"At or above the best by the median: {len(ahead)} of {models}. "
        f"Significantly slower: {', '.join(slower) or 'none'}."
    )


def _columns(standings: list[Standing]) -> list[str]:
    """Return the competitors' names, ours last."""
    raced = dict.fromkeys(name for one in standings for name in one.over_eager)
    return [*(n for n in raced if n not in OURS), *(n for n in OURS if n in raced or n == HANDOFF)]


def _cell(one: Standing, name: str) -> str:
    ratio = one.over_eager.get(name)
    if name in one.wrong:
        return "wrong"
    return "-" if ratio is None else f"{ratio.value:.2f}" if ratio.is_significant else "="


def _compared(standings: list[Standing]) -> list[Standing]:
    """Return the models that all competitors serve, and rightly: over those all compare."""
    names = _columns(standings)
    return [
        one for one in standings
        if not one.wrong and all(name in one.over_eager for name in names)
    ]  # fmt: skip


def _mean(compared: list[Standing], name: str) -> str:
    logs = [math.log(one.over_eager[name].value) for one in compared]
    return f"**{math.exp(sum(logs) / len(logs)):.2f}**" if logs else "-"


def _range(values: list[int] | list[float], form: str = "d") -> str:
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low} to {high}"


def _describe_error(error: float) -> str:
    if math.isfinite(error):
        return f"wrong by {error:.2g} times the RMS of eager's outputs"
    return f"wrong: NaN or infinities that are not {EAGER}'s"
