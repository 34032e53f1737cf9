"""The messages between who releases, promotes or pulls and the steps that do it.

A change to a model's ledger takes three steps in two processes: one that reaches the stores drafts
the entry, one that alone reads the key signs it, and the first one appends it. Where another writer
was quicker, it is drafted anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from artifacts.digest import Digest
from artifacts.ledger import LedgerEntry
from artifacts.manifest import Manifest


@dataclass(frozen=True)
class Stores:
    """Where releases are kept, as locations only, and whose signatures are trusted.

    `objects` is a folder or `s3://bucket/prefix`, `tracking_uri` is MLflow's, and `artifact_root`
    is where MLflow keeps artifacts when it runs embedded (empty: where the server says). `trusted`
    are files and folders of public keys, and `seen` is the file that remembers how far each ledger
    went (None: nothing is remembered). Secrets are never part of it: boto3 and MLflow read them
    from the environment of the one child process that gets them.
    """

    objects: str
    tracking_uri: str
    artifact_root: str = ""
    trusted: tuple[str, ...] = ()
    seen: Path | None = None


@dataclass(frozen=True)
class SigningKey:
    """The key that signs: a PEM file or a KMS's address, never the key itself.

    `public` is where the public key lies, or is written to when the key is to be made
    (`make_missing`).
    """

    uri: str
    public: Path
    make_missing: bool = False


@dataclass(frozen=True)
class KeyJob:
    """Open the signing key, or make it, before anything is built that it would have to sign.

    It has to be one of the keys in the places `trusted`.
    """

    key: SigningKey
    trusted: tuple[str, ...]


@dataclass(frozen=True)
class KeyResult:
    """The signing key's id."""

    key_id: str


@dataclass(frozen=True)
class LookUpJob:
    """Find the version of `model` that was released from what `fingerprint` stands for.

    `alias` is the one that the release is going to move.
    """

    model: str
    fingerprint: Digest
    stores: Stores
    alias: str


@dataclass(frozen=True)
class LookUpResult:
    """The version that would be made again, where its files are all in the store; else None."""

    version: int | None
    manifest: Digest | None = None


@dataclass(frozen=True)
class UploadJob:
    """Store the files below `folder` that `manifest` names, the manifest, and its evidence."""

    manifest: Manifest
    folder: Path
    stores: Stores


@dataclass(frozen=True)
class Uploaded:
    """The digests of the list of parts and of the evidence, by name.

    `lacking` tells, in sentences, what the store does not guarantee.
    """

    parts: Digest
    evidence: dict[str, Digest]
    lacking: tuple[str, ...] = ()


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
class SideBySideJob:
    """Time two pulled releases' packages for `target`, call by call in turns, on one example.

    `folders` are the one that is served and the one that may replace it, whose first example is
    taken; `keys` are the places of the public keys that have signed them.
    """

    folders: tuple[Path, ...]
    target: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class SideBySide:
    """How many times as fast the second package is as the first, with a 95 % interval.

    The median of the rounds' own ratios; `sizes` tells the example's input shapes.
    """

    target: str
    sizes: str
    ratio: float
    low: float
    high: float
    threads: int

    def __str__(self) -> str:
        return (
            f"{self.target}: {self.ratio:.2f} times as fast as what it replaces "
            f"({self.low:.2f} to {self.high:.2f}), in turns on {self.sizes}, {self.threads} threads"
        )


@dataclass(frozen=True)
class PromoteRequest:
    """Make `alias` stand for the version that `reference` names.

    With `override`, the rules of a promotion that it breaks are recorded with the reason instead.
    `measured` are those targets that were timed beside what they replace.
    """

    model: str
    reference: str | int | None
    alias: str
    override: bool = False
    measured: tuple[SideBySide, ...] = ()
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
class DraftJob:
    """Draft the ledger's next entry for `request`.

    `attempt` counts the drafts. `expected` is the version that the alias stood for at the first
    one, or has to stand for (`is_conditional`): where it was moved meanwhile, that is told.
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
class SignJob:
    """Sign an entry, and with `uploaded` the release of `manifest` that it makes a version of."""

    key: SigningKey
    entry: LedgerEntry
    manifest: Manifest | None = None
    uploaded: Uploaded | None = None


@dataclass(frozen=True)
class Signed:
    """The envelopes of the entry and of the release ('' without one), and the entry as signed."""

    entry: LedgerEntry
    entry_envelope: str
    release_envelope: str = ""


@dataclass(frozen=True)
class CommitJob:
    """Append the signed entry to the ledger."""

    stores: Stores
    signed: Signed


@dataclass(frozen=True)
class CommitResult:
    """Whether it is the ledger's next entry; False where another writer was quicker."""

    won: bool


@dataclass(frozen=True)
class CatalogueJob:
    """Show in MLflow, and in the store's copies for people, what a model's ledger says.

    `folder` holds the files of `version`, where they are still here.
    """

    stores: Stores
    model: str
    version: int | None = None
    folder: Path | None = None
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Catalogued:
    """The newest version that is shown; 0 for none."""

    version: int


@dataclass(frozen=True)
class PullJob:
    """Fetch the version that `reference` names (None: the newest) into the folder `to`.

    `target` is a slug, or `auto` for the best one that fits this machine and the torch of
    `torch_version` (None leaves torch out). Without `to` everything is fetched and verified, and
    nothing kept.
    """

    name: str
    reference: str | int | None
    to: Path | None
    target: str
    stores: Stores
    torch_version: str | None


@dataclass(frozen=True)
class PullResult:
    """What was pulled, and where it lies."""

    folder: Path | None
    model: str
    version: int
    target: str
    manifest: Digest


@dataclass(frozen=True)
class CollectJob:
    """Remove what no version needs from the store, once it is older than `grace_h` hours.

    With `pretend` nothing is removed.
    """

    stores: Stores
    grace_h: float
    pretend: bool = False


@dataclass(frozen=True)
class CollectResult:
    """What is needed, what was not and is gone, what was not and is too new; uploads abandoned."""

    kept: int
    kept_bytes: int
    removed: int
    removed_bytes: int
    spared: int
    abandoned: int
