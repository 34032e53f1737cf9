"""What every claim about a release rests on: findings, verdicts, deviations and timings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
