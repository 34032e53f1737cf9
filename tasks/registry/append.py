"""Append: draft, sign and commit until the entry is the ledger's next one, or may not be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from handoff.artifacts.errors import HandoffError, NotShownYet, PackageRefused, RegistryFailed
from handoff.artifacts.host import SigningKey, Stores
from handoff.artifacts.record import Job
from handoff.artifacts.release.ledger import LedgerEntry
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.waiting import Backoff
from handoff.tasks.registry.changes import Author, CommitJob, DraftJob, Request, SignJob
from handoff.tasks.registry.messages import UploadResult

# Of so many writers at once that this is not enough, something else is wrong.
_ATTEMPTS = 64
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 4.0
R = TypeVar("R")


class StepRunner(Protocol):
    """What runs a job and returns its step's result: a `StepProcess`."""

    def run(self, job: Job[R]) -> R:
        """Return the result of `job`; raise what the step raised."""


@dataclass(frozen=True)
class Change:
    """What is to be changed, by whom, where, and the key that signs it.

    `manifest` and `uploaded` are those of a new version. `expected` is the version that the alias
    has to stand for, where `is_conditional`.
    """

    request: Request
    author: Author
    stores: Stores
    key: SigningKey
    manifest: Manifest | None = None
    uploaded: UploadResult | None = None
    expected: int | None = None
    is_conditional: bool = False


@dataclass(frozen=True)
class AppendResult:
    """The entry that was appended, None where nothing had to change, and the version it is of.

    `aliases` are those that stand for that version now.
    """

    entry: LedgerEntry | None
    version: int
    aliases: tuple[str, ...]


@contextmanager
def raise_as_not_shown(model: str, appended: AppendResult) -> Iterator[None]:
    """Raise what goes wrong in the body as `NotShownYet`, which says that the change is made.

    For what shows in MLflow, and in the store's copies, what the ledger has by then. What isn't
    signed as it should be is reported as it is.
    """
    try:
        yield
    except PackageRefused:
        raise
    except HandoffError as error:
        version, entry = appended.version, appended.entry
        done = f"version {version} of {model} is released and can be pulled"
        if entry is not None and entry.action != "release":
            done = f"entry {entry.sequence} of {model}'s ledger is made, and holds"
        not_shown = NotShownYet(
            f"{done}; MLflow doesn't show it yet, since {error.what}", expected=error.expected,
            got=error.got, remedy=f"Once that is fixed, 'handoff sync {model}' makes up for it; "
            "nothing has to be done again",
        )  # fmt: skip
        not_shown.model, not_shown.version, not_shown.aliases = model, version, appended.aliases
        raise not_shown from error


def append(registrar: StepRunner, signer: StepRunner, change: Change) -> AppendResult:
    """Make the change; raise what a step refuses, and `RegistryFailed` after too many attempts."""
    expected = change.expected
    pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, cut=1.0)
    for attempt in range(_ATTEMPTS):
        drafting = DraftJob(
            change.stores, change.request, change.author, attempt, expected, change.is_conditional
        )
        draft = registrar.run(drafting)
        if draft.entry is None:
            assert draft.known is not None
            return AppendResult(None, draft.known, draft.aliases)
        if attempt == 0:
            expected = draft.entry.replaced
        is_new = draft.known is None
        signing = SignJob(
            change.key,
            draft.entry,
            change.manifest if is_new else None,
            change.uploaded if is_new else None,
        )
        signed = signer.run(signing)
        committing = CommitJob(change.stores, signed)
        committed = registrar.run(committing)
        if committed.won:
            version = signed.entry.version
            return AppendResult(signed.entry, version, signed.entry.aliases_of(version))
        # Who lost together would meet again.
        pauses.take()
    raise RegistryFailed(
        f"{change.request.model}'s ledger could not be appended to",
        expected=f"to be the next writer within {_ATTEMPTS} attempts", got="others, each time",
        remedy="See in 'handoff history' who writes there, then run the same command again",
    )  # fmt: skip
