"""The messages between the flow and its steps: one job and one result for each step.

They live here, apart from the steps, because a flow may name them without importing torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from artifacts.delivery import DeliveryContract
from artifacts.digest import Digest
from artifacts.evidence import Finding
from artifacts.manifest import Manifest


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


@dataclass(frozen=True)
class Stores:
    """Where releases are kept: the object store and the model registry, as locations only.

    `objects` is a folder or `s3://bucket/prefix`, `tracking_uri` is MLflow's, and `artifact_root`
    is where MLflow keeps artifacts when it runs embedded (empty: where the server says). Secrets
    are never part of it: boto3 and MLflow read them from the environment of the one child
    process that gets them.
    """

    objects: str
    tracking_uri: str
    artifact_root: str = ""


@dataclass(frozen=True)
class RegisterJob:
    """Store the files below `folder` that `manifest` names, register a version, move `alias`."""

    manifest: Manifest
    folder: Path
    stores: Stores
    alias: str = "candidate"
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RegisterResult:
    """The version that holds the release, the manifest's digest, and MLflow's run for it."""

    model: str
    version: int
    manifest: Digest
    run_id: str
