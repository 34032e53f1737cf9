"""What fetching a delivery is asked, and sending and receiving folders through the store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.digest import Digest
from handoff.artifacts.host import Stores
from handoff.artifacts.record import Job


@dataclass(frozen=True)
class SendResult:
    """The digest of the list of the folder's parts: all that the other side has to know."""

    parts: Digest


@dataclass(frozen=True)
class SendJob(Job[SendResult]):
    """Keep every file below `folder` as objects, which the garbage collector removes in time.

    Packages that were made from the `delivery` in another folder are cut as a release will cut
    them, so that nothing is sent twice.
    """

    stores: Stores
    folder: Path
    delivery: Path | None = None


@dataclass(frozen=True)
class ReceiveResult:
    """The folder, with every file as it was sent."""

    folder: Path


@dataclass(frozen=True)
class ReceiveJob(Job[ReceiveResult]):
    """Fetch the folder that was sent as `parts` into the new folder `folder`."""

    stores: Stores
    parts: Digest
    folder: Path


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
