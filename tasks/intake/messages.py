"""What taking a delivery in is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.delivery.contract import DeliveryContract
from handoff.artifacts.digest import Digest
from handoff.artifacts.record import Job
from handoff.artifacts.release.evidence import Finding


@dataclass(frozen=True)
class IntakeJob(Job["IntakeResult"]):
    """Copy the delivery in `delivery` into the private folder `staging` and read it there."""

    delivery: Path
    staging: Path


@dataclass(frozen=True)
class IntakeResult:
    """What was taken in: the contract, the digests of the staged files, the size of the model."""

    contract: DeliveryContract
    staging: Path
    digest: Digest
    files: dict[str, Digest]
    nodes: int
    weights_bytes: int
    findings: tuple[Finding, ...] = ()
