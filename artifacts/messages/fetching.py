"""The message to the step that fetches a delivery, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.digest import Digest
from handoff.artifacts.messages.job import Job


@dataclass(frozen=True)
class FetchLimits:
    """What a delivery may be at most: bytes and files, and seconds until it is there."""

    size_bytes: int = 1 << 36
    files: int = 10_000
    seconds: float = 3600.0


@dataclass(frozen=True)
class FetchJob(Job["FetchResult"]):
    """Fetch the delivery at `uri` (`artifacts.delivery.uri`) into `folder`, which is new."""

    uri: str
    folder: Path
    limits: FetchLimits = FetchLimits()


@dataclass(frozen=True)
class FetchResult:
    """The folder, what is in it, and the digest of all its files (`digest_tree`)."""

    folder: Path
    digest: Digest
    files: int
    size_bytes: int
