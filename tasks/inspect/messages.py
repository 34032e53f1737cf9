"""What inspecting a delivery is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.delivery.contract import NO_LINEAGE, Lineage
from handoff.artifacts.record import Job
from handoff.artifacts.release.evidence import Finding, Verdict


@dataclass(frozen=True)
class TraceabilityJob(Job["TraceabilityResult"]):
    """Judge the delivery in `staging`, whose lineage has to say what `required_lineage` names.

    `said` is what whoever asks for the release says about its source. With `exports` it is
    seen, too, whether torch.export takes the graph for all declared sizes, as a release does next.
    """

    staging: Path
    required_lineage: tuple[str, ...] = ()
    said: Lineage = NO_LINEAGE
    exports: bool = False


@dataclass(frozen=True)
class TraceabilityResult:
    """The verdict on a delivery and what it rests on."""

    verdict: Verdict
    findings: tuple[Finding, ...]
