"""The messages of a change to a model's ledger: asked for, drafted, signed, committed.

It takes three steps in two processes: one that reaches the stores drafts the entry, one that alone
reads the key signs it, and the first one appends it. Where another writer was quicker, it is
drafted again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from handoff.artifacts.digest import Digest
from handoff.artifacts.host import SigningKey, Stores
from handoff.artifacts.record import Job
from handoff.artifacts.release.comparison import SideBySide
from handoff.artifacts.release.ledger import LedgerEntry
from handoff.artifacts.release.manifest import Manifest
from handoff.tasks.registry.messages import UploadResult

# What a release may move that holds a package which was not run yet: nobody serves what these
# stand for. The second is that of nightly rebuilds.
TRIAL_ALIAS = "candidate"
NIGHTLY_ALIAS = "nightly"
TRIAL_ALIASES = (TRIAL_ALIAS, NIGHTLY_ALIAS)


@dataclass(frozen=True)
class Author:
    """Who asks for a change, why, and in which flow run."""

    by: str
    reason: str = ""
    run: str = ""


@dataclass(frozen=True)
class ReleaseRequest:
    """Make the record `manifest` the newest version of `model`, and `alias` stand for it.

    A version that was made from the same is found again, unless this is a `rebuild`.
    """

    model: str
    manifest: Digest
    fingerprint: Digest
    alias: str
    rebuild: bool = False
    kind: Literal["release"] = "release"


@dataclass(frozen=True)
class PromoteRequest:
    """Make `alias` stand for the version that `reference` names.

    With `override`, the rules of a promotion that it breaks are recorded with the reason instead.
    `measured` are those targets that were timed beside what they replace. A version that takes
    less than what it replaces has to be meant to be `narrower`.
    """

    model: str
    reference: str | int | None
    alias: str
    override: bool = False
    measured: tuple[SideBySide, ...] = ()
    narrower: bool = False
    kind: Literal["promote"] = "promote"


@dataclass(frozen=True)
class RollBackRequest:
    """Make `alias` stand for what it stood for before, or for `version`."""

    model: str
    alias: str
    version: int | None = None
    kind: Literal["rollback"] = "rollback"


@dataclass(frozen=True)
class RetireRequest:
    """Give up a version: its packages may be removed."""

    model: str
    version: int
    kind: Literal["retire"] = "retire"


Request = ReleaseRequest | PromoteRequest | RollBackRequest | RetireRequest


@dataclass(frozen=True)
class DraftJob(Job["Draft"]):
    """Draft the ledger's next entry for `request`.

    `attempt` counts the drafts. `expected` is the version that the alias pointed to at the first
    one, or has to stand for (`is_conditional`): where it was moved meanwhile, that is reported.
    """

    stores: Stores
    request: Request
    author: Author
    attempt: int = 0
    expected: int | None = None
    is_conditional: bool = False


@dataclass(frozen=True)
class Draft:
    """The entry, unsigned; None where nothing has to change. `known` is the version that it is of.

    None stands for one that is new. `aliases` are those that stand for it already.
    """

    entry: LedgerEntry | None
    known: int | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class SignJob(Job["SignResult"]):
    """Sign an entry, and with `uploaded` the release of `manifest` that it makes a version of."""

    key: SigningKey
    entry: LedgerEntry
    manifest: Manifest | None = None
    uploaded: UploadResult | None = None


@dataclass(frozen=True)
class SignResult:
    """The envelopes of the entry and of the release ('' without one), and the entry as signed."""

    entry: LedgerEntry
    entry_envelope: str
    release_envelope: str = ""


@dataclass(frozen=True)
class CommitJob(Job["CommitResult"]):
    """Append the signed entry to the ledger."""

    stores: Stores
    signed: SignResult


@dataclass(frozen=True)
class CommitResult:
    """Whether it is the ledger's next entry; False where another writer was quicker."""

    won: bool
