"""What is asked of a GPU, written once as data, and what the measurements say to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.studies.benchmarks.seeds.contestants import CROSS, ELSEWHERE, NATIVE
from tests.studies.benchmarks.seeds.measured import Measurement, geometric_mean
from tests.studies.benchmarks.served.turns import Ratio


@dataclass(frozen=True)
class Goal:
    """`least` times as fast as eager, or cross-compiled packages as native ones.

    It is held against a `model`, or without one against all: their geometric mean, or each of them,
    by the slowest. `precisions` are those that it is asked of, each apart.
    """

    what: str
    least: float
    precisions: tuple[str, ...]
    model: str = ""
    kind: Literal["eager", "native"] = "eager"


_FULL = ("float32", "tf32")
# The first two are what seed 000 saw on an A10, in float32 with torch's defaults: TF32 is allowed
# in convolutions and forbidden in products, which lies between the two that are measured here.
GOALS = (
    Goal("ResNet-18 over eager", 1.35, _FULL, model="resnet18"),
    Goal("user_model over eager", 2.69, _FULL, model="user_model"),
    Goal("geometric mean over eager", 1.9, ("fp16",)),
    Goal("cross-compiled over native, the slowest model", 0.95, (*_FULL, "bf16", "fp16"),
         kind="native"),
)  # fmt: skip


def verdicts(measured: Sequence[Measurement]) -> list[str]:
    """Return a line for each goal and precision that was measured on a GPU, or that none was."""
    on_gpu = [one for one in measured if one.device == "cuda"]
    return [line for goal in GOALS for line in _verdicts(goal, on_gpu)]


def _verdicts(goal: Goal, measured: list[Measurement]) -> list[str]:
    lines = []
    for precision in goal.precisions:
        of_it = [one for one in measured if one.precision == precision and
                 (not goal.model or one.model == goal.model)]  # fmt: skip
        finding = _native(of_it) if goal.kind == "native" else _over_eager(of_it)
        if finding:
            what, ratio = finding
            verdict = _describe_verdict(ratio, goal.least)
            lines.append(f"{_describe_goal(goal, precision)}: {verdict} ({what})")
    return lines or [f"{_describe_goal(goal, ', '.join(goal.precisions))}: not measured"]


def _describe_goal(goal: Goal, precision: str) -> str:
    return f"{goal.what}, {precision}, at least {goal.least:g}"


def _describe_verdict(ratio: Ratio, least: float) -> str:
    verdict = "met" if ratio.value >= least else "missed"
    noise = ", within the noise" if ratio.low < least <= ratio.high else ""
    return f"{verdict} at {ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}){noise}"


def _over_eager(measured: list[Measurement]) -> tuple[str, Ratio] | None:
    """Return the mean of what Handoff would release over eager, and of how many models it is."""
    fastest = [(one, name) for one in measured if (name := one.fastest())]
    if not fastest:
        return None
    mean = geometric_mean([one.ratios(name) for one, name in fastest])
    names = sorted({name for _, name in fastest})
    of = fastest[0][0].model if len(fastest) == 1 else f"{len(fastest)} models"
    return f"{of}; {'; '.join(names)}", mean


def _native(measured: list[Measurement]) -> tuple[str, Ratio] | None:
    """Return the slowest cross-compiled package over the native one of the same program."""
    ratios = [
        (f"{one.model}, {cross.removeprefix('Handoff, ')}", Ratio.across(found))
        for one in measured for cross in (CROSS, ELSEWHERE)
        if (found := one.ratios(cross, over=NATIVE))
    ]  # fmt: skip
    return min(ratios, key=lambda pair: pair[1].value, default=None)
