"""What every claim about a release rests on: findings, verdicts, deviations and timings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from artifacts.record import later

Severity = Literal["note", "limit", "unsound"]
Verdict = Literal["sound", "sound within limits", "unsound"]


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
class PassEffect:
    """What one pass did: nodes before and after, and how far the outputs moved in float64.

    `left_out` is the reason why a pass was taken back that broke the tolerance.
    """

    name: str
    level: Literal["fx", "aten"]
    modified: bool
    nodes_before: int
    nodes_after: int
    max_abs: float = 0.0
    intended: bool = False
    left_out: str = later("")


@dataclass(frozen=True)
class Timing:
    """Seconds per call of eager and of the package on the same input, interleaved.

    Medians over `rounds` rounds of both; `speedup` is the median of the rounds' own ratios
    eager / package, with a 95 % interval from the order statistics of those ratios.
    """

    case: str
    eager_s: float
    package_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    rounds: int
    threads: int
