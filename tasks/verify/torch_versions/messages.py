"""The job of making an environment with another torch, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.record import Job


@dataclass(frozen=True)
class MakeTorchJob(Job["TorchEnvironment"]):
    """Make an environment with torch `version` below `folder`, unless it is there."""

    version: str
    folder: Path


@dataclass(frozen=True)
class TorchEnvironment:
    """A Python that imports torch `version`; it took `seconds` to get, 0 where it was there."""

    version: str
    python: Path
    seconds: float = 0.0
