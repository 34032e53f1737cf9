"""What another machine of a stack made of one target."""

from __future__ import annotations

from dataclasses import dataclass, field

from handoff.artifacts.digest import Digest
from handoff.artifacts.release.manifest import TargetRecord

# In the folder that comes back for a target, beside its packages.
ANSWER_FILE = "answer.json"


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
