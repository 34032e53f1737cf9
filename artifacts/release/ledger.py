"""The ledger of a model: who released, promoted or rolled back what, when and why.

Entries are signed statements, numbered from 1, each with the digest of the one before it. To
create the next one is to commit: the store lets one writer do so, so that of two the other learns
that it came too late. An entry holds the state after it (each alias and its version), so that the
newest one says what is in production.

How far each ledger went when this machine last looked is kept, so that one that goes back is
noticed: a store that hides the newest entries shows an older version as the one in production, with
valid signatures (a rollback or freeze attack, as The Update Framework calls it).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from handoff.artifacts.delivery.contract import require_model_name
from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.files.locks import lock_folder
from handoff.artifacts.files.strict_parsing import parse_json
from handoff.artifacts.files.writing import write_atomically
from handoff.artifacts.record import RecordInvalid, added_field, from_plain, to_plain
from handoff.artifacts.release.signing import STATEMENT_TYPE, Trust, open_envelope

PREDICATE_TYPE = "urn:handoff:ledger:1"
Action = Literal["release", "promote", "rollback", "retire"]


# The alias that serving machines go by. It is never a release's own to move.
PRODUCTION = "production"


@dataclass(frozen=True)
class Pointer:
    """What an alias points to: a version, the digest of its signed release, and who put it there.

    `entry` is the number of the ledger's entry that moved it last, `action` that entry's.
    """

    version: int
    release: Digest
    action: Action
    entry: int


@dataclass(frozen=True)
class LedgerEntry:
    """One line of a model's ledger.

    `previous` is the digest of the entry before it, as it lies in the store; '' for the first one.
    `release` is the digest of the version's signed statement, `manifest` that of its record,
    `fingerprint` stands for what it was made from. `alias` is the one that was moved ('' where none
    was), and `replaced` the version that it stood for. `aliases` and `newest` are the state after
    this entry, `retired` the versions whose packages may be removed. `overrides` are the rules that
    were set aside, for the `reason` that was given, and `measured` says what was timed beside what
    it replaces. `nonce` tells equal entries of two writers apart.
    """

    model: str
    sequence: int
    previous: str
    action: Action
    version: int
    release: Digest
    manifest: Digest
    fingerprint: Digest
    alias: str
    replaced: int | None
    aliases: dict[str, Pointer]
    newest: int
    by: str
    at: str
    nonce: str
    reason: str = ""
    overrides: tuple[str, ...] = ()
    run: str = ""
    retired: tuple[int, ...] = field(default=())
    schema: int = added_field(1)
    measured: tuple[str, ...] = added_field(())

    def __post_init__(self) -> None:
        """Check what every entry has."""
        require_model_name(self.model)
        if self.sequence < 1 or self.version < 1 or self.newest < self.version:
            raise ValueError("expected numbers from 1, and no version beyond the newest")

    @property
    def pointer(self) -> Pointer:
        """What an alias points to that this entry moves: its version, as it was signed."""
        return Pointer(self.version, self.release, self.action, self.sequence)

    @property
    def kept(self) -> tuple[int, ...]:
        """The versions that were not retired, oldest first."""
        return tuple(v for v in range(1, self.newest + 1) if v not in self.retired)

    def aliases_of(self, version: int) -> tuple[str, ...]:
        """Return the aliases that stand for a version after this entry."""
        return tuple(sorted(a for a, pointer in self.aliases.items() if pointer.version == version))

    def with_release(self, release: Digest) -> LedgerEntry:
        """Return the entry of a version whose statement was signed just now."""
        moved = {
            alias: replace(pointer, release=release) if pointer.entry == self.sequence else pointer
            for alias, pointer in self.aliases.items()
        }
        return replace(self, release=release, aliases=moved)


def entry_statement(entry: LedgerEntry) -> dict[str, Any]:
    """Return the statement that is signed for an entry; its subject is the version's record."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {
                "name": f"{entry.model}@{entry.version}",
                "digest": {"sha256": entry.manifest.hex},
            }
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": to_plain(entry),
    }


def open_entry(data: bytes, trust: Trust, model: str, sequence: int | None = None) -> LedgerEntry:
    """Return the entry in an envelope; raise `PackageRefused` unless it is `model`'s `sequence`.

    An entry of another model, or of another place in the ledger, is refused although it is signed.
    """
    place = "an entry" if sequence is None else f"entry {sequence}"
    what = f"{place} of {model}'s ledger"
    statement = open_envelope(data, trust, what)
    if statement.get("predicateType") != PREDICATE_TYPE:
        raise _refusal(what, PREDICATE_TYPE, str(statement.get("predicateType"))[:80])
    try:
        entry = from_plain(LedgerEntry, statement.get("predicate"), "entry")
    except RecordInvalid as error:
        raise _refusal(what, "a ledger's entry of schema 1", str(error)) from error
    if (entry.model, sequence or entry.sequence) != (model, entry.sequence):
        raise _refusal(what, f"{model}'s {place}", f"{entry.model}'s entry {entry.sequence}")
    return entry


def _refusal(what: str, expected: str, got: str) -> PackageRefused:
    return PackageRefused(
        f"{what} is not what it should be", expected=expected, got=got,
        remedy="Somebody has changed the store: use nothing of it, and tell who releases",
    )  # fmt: skip


class SeenLedgers:
    """A file that keeps the newest entry seen of each ledger."""

    def __init__(self, file: Path) -> None:
        """Use `file`, which is made when something was seen."""
        self.file = file

    def newest(self, location: str, model: str) -> tuple[int, str]:
        """Return the number and the digest of the newest entry seen; 0 and '' for none."""
        return self._read().get(f"{location} {model}", (0, ""))

    def models(self, location: str) -> tuple[str, ...]:
        """Return the models of which a ledger was seen in the store at `location`."""
        places = (place.rpartition(" ") for place in self._read())
        return tuple(sorted(model for store, _, model in places if store == location))

    def note(
        self, location: str, model: str, newest: tuple[int, str], *, since: tuple[int, str]
    ) -> None:
        """Note a ledger's newest entry, its number and digest.

        Raises `PackageRefused` where it is before the one that was seen `since`, or another one.
        """
        seen_sequence, seen_digest = since
        sequence, digest = newest
        if sequence < seen_sequence or (sequence == seen_sequence and digest != seen_digest):
            raise PackageRefused(
                f"{model}'s ledger went back",
                expected=f"entry {seen_sequence}, which was there before, or a later one",
                got=f"entry {sequence}"
                if sequence < seen_sequence
                else f"another entry {sequence}",
                remedy=f"Ask who keeps the store {location}. If that is as it should be (a store "
                f"made again), remove {self.file}",
            )
        if sequence > seen_sequence:
            self._write(f"{location} {model}", sequence, digest)

    def _read(self) -> dict[str, tuple[int, str]]:
        try:
            plain = parse_json(self.file.read_bytes())
            return {
                str(place): (int(number), str(digest)) for place, (number, digest) in plain.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise PackageRefused(
                f"{self.file} can't be read", expected="what was seen of each ledger",
                got=str(error)[:100], remedy="Remove it: it is written again",
            ) from error  # fmt: skip

    def _write(self, place: str, sequence: int, digest: str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        # Of two that note at once neither undoes what the other one noted.
        with lock_folder(self.file.parent):
            seen = self._read()
            if sequence <= seen.get(place, (0, ""))[0]:
                return
            seen[place] = (sequence, digest)
            text = json.dumps(seen, sort_keys=True) + "\n"
            write_atomically(self.file, text, mode=0o666, is_synced=True)
