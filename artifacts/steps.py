"""The messages between the flow and its steps: one job and one result for each step.

They live here, apart from the steps, because a flow may name them without importing torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from artifacts.delivery import DeliveryContract
from artifacts.digest import Digest
from artifacts.evidence import Finding


@dataclass(frozen=True)
class IntakeJob:
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
