"""The messages by which machines of one stack give each other folders, through the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from handoff.artifacts.digest import Digest
from handoff.artifacts.messages.job import Job
from handoff.artifacts.messages.registering import Stores
from handoff.artifacts.release.manifest import TargetRecord

# In the folder that comes back for a target, beside its packages.
ANSWER_FILE = "answer.json"


@dataclass(frozen=True)
class SendJob(Job["Sent"]):
    """Keep every file below `folder` as objects, which the garbage collector removes in time.

    Packages that were made from the `delivery` in another folder are cut as a release will cut
    them, so that nothing is sent twice.
    """

    stores: Stores
    folder: Path
    delivery: Path | None = None


@dataclass(frozen=True)
class Sent:
    """The digest of the list of the folder's parts: all that the other side has to be told."""

    parts: Digest


@dataclass(frozen=True)
class ReceiveJob(Job["Received"]):
    """Fetch the folder that was sent as `parts` into the new folder `folder`."""

    stores: Stores
    parts: Digest
    folder: Path


@dataclass(frozen=True)
class Received:
    """The folder, with every file as it was sent."""

    folder: Path


@dataclass(frozen=True)
class TargetAnswer:
    """What another machine made of one target: its record, and what it was made with.

    `delivery` and `plan` are the digests of what it was made from and compared on, which have to be
    those of the release that it becomes part of. `asked` has the cases that ask for known faults.
    """

    record: TargetRecord
    toolchain: dict[str, str]
    plan: str
    delivery: Digest
    asked: dict[str, str] = field(default_factory=dict)
