"""The releases in a store: a model's ledger, aliases and versions, verified as they are read.

Where everything lies is described in `artifacts.release.layout`. Everything but the ledger and the
objects is a copy, which nobody who verifies relies on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.errors import (
    PackageRefused,
    RegistryFailed,
    StoreFailed,
    StoreUnreachable,
    did_you_mean,
)
from handoff.artifacts.release.layout import (
    ENTRY_FILE,
    MODELS,
    PARTS_LIMIT_BYTES,
    REPORT_FILE,
    fingerprint_key,
    ledger_key,
    read_parts,
    version_key,
)
from handoff.artifacts.release.ledger import (
    PRODUCTION,
    LedgerEntry,
    Pointer,
    SeenLedgers,
    open_entry,
)
from handoff.artifacts.release.manifest import MANIFEST_LIMIT_BYTES, Manifest, parse_manifest
from handoff.artifacts.release.signing import ENVELOPE_LIMIT_BYTES, Trust
from handoff.artifacts.release.statement import (
    Claim,
    match_manifest,
    open_release,
    require_same_files,
)
from handoff.artifacts.stores.objects import Objects, Part
from handoff.artifacts.stores.store import Store

_READERS = 16
# A record's digest, or as much of its beginning as is shown to people.
_RECORD = re.compile(r"[0-9a-f]{12,64}")
_MOST_AT_ONCE = 512
# Of the models that a store lacks; the others are counted.
_MOST_MODELS_NAMED = 5


@dataclass(frozen=True)
class LedgerHead:
    """The newest entry of a ledger, and the digest of its envelope, which the next one names."""

    entry: LedgerEntry
    digest: Digest


@dataclass(frozen=True)
class SignedRelease:
    """One version, verified: what its signature says, its record, and the bytes of both."""

    claim: Claim
    manifest: Manifest
    envelope: bytes
    digest: Digest


class Releases:
    """The releases in `store` that keys of `trust` have signed."""

    def __init__(self, store: Store, trust: Trust, seen: SeenLedgers | None = None) -> None:
        """Remember in `seen` how far each ledger went, so that one which goes back is noticed."""
        self.store = store
        self.objects = Objects(store)
        self.trust = trust
        self._seen = seen

    def models(self) -> tuple[str, ...]:
        """Return the names of all models that have a ledger."""
        return self.store.names(MODELS)

    def missing(self) -> tuple[str, ...]:
        """Return the models whose ledgers this machine has seen in this store, and which are gone.

        No command removes a ledger: such a store isn't mounted, is another one, or has lost them.
        """
        seen = self._seen.models(self.store.location) if self._seen else ()
        present = set(self.models()) if seen else set()
        return tuple(model for model in seen if model not in present)

    def require_ledgers(self) -> None:
        """Raise `StoreUnreachable` where ledgers were seen in this store, and it has none any more.

        An empty store is as good as any to whoever asks for nothing by its name.
        """
        missing = self.missing()
        if missing and not self.models():
            raise self.missing_ledgers_error(missing)

    def missing_ledgers_error(self, missing: Sequence[str]) -> StoreUnreachable:
        """Return the refusal to work on a store that lacks the ledgers of these models."""
        there = len(self.models())
        more = (
            f" and {len(missing) - _MOST_MODELS_NAMED} more"
            if len(missing) > _MOST_MODELS_NAMED
            else ""
        )
        again = f", and remove {self._seen.file} if it was made again" if self._seen else ""
        return StoreUnreachable(
            f"the store {self.store.location} lacks ledgers that this machine has seen in it",
            expected=f"that of {', '.join(missing[:_MOST_MODELS_NAMED])}{more}",
            got=f"{there} other{'s' * (there > 1)}" if there else "no ledger at all",
            remedy="Look whether it is the right one and whether it is mounted, bring it back from "
            f"a backup where it has lost them{again}",
        )  # fmt: skip

    def head(self, model: str) -> LedgerHead | None:
        """Return the newest entry of a model's ledger; None where nothing was ever released.

        Raises `PackageRefused` for an entry that isn't verified, and for a ledger that is shorter
        than it was when this machine looked at it before.
        """
        place = (self.store.location, model)
        # Asked before the store is: meanwhile another process may append an entry and note it.
        seen = self._seen.newest(*place) if self._seen else (0, "")
        last = self._last_sequence(model, seen[0])
        head = self._read_entry(model, last) if last else None
        if self._seen is not None:
            newest = (head.entry.sequence, str(head.digest)) if head else (0, "")
            self._seen.note(*place, newest, since=seen)
        return head

    def require_head(self, model: str) -> LedgerHead:
        """Return the newest entry; raise `RegistryFailed` where nothing was released."""
        head = self.head(model)
        if head is None:
            raise self.not_registered_error(model, None)
        return head

    def entries(self, model: str) -> tuple[LedgerEntry, ...]:
        """Return the whole ledger, oldest first.

        Raises `PackageRefused` where an entry is missing, isn't verified, or doesn't follow from
        the one before it.
        """
        return tuple(self.entries_newest_first(model))[::-1]

    def entries_newest_first(self, model: str) -> Iterator[LedgerEntry]:
        """Give the ledger's entries, newest first, and read no more of it than is asked for.

        Raises `PackageRefused` as `entries` does.
        """
        head = self.head(model)
        if head is None:
            return
        following = head.entry
        yield following
        remaining, batch = following.sequence - 1, _READERS
        with ThreadPoolExecutor(_READERS) as pool:
            while remaining > 0:
                numbers = range(remaining, max(0, remaining - batch), -1)
                for preceding in pool.map(lambda number: self._read_entry(model, number), numbers):
                    if following.previous != preceding.digest:
                        raise _broken_ledger(model, following.sequence)
                    following = preceding.entry
                    yield following
                remaining -= len(numbers)
                batch = min(2 * batch, _MOST_AT_ONCE)
        if following.previous:
            raise _broken_ledger(model, following.sequence)

    def entry(self, model: str, sequence: int) -> LedgerEntry:
        """Return one entry of a model's ledger."""
        return self._read_entry(model, sequence).entry

    def find(self, model: str, reference: str | int | None) -> Pointer:
        """Return what an alias or a version's number stands for; the newest one kept for None.

        A version may be named by its record's digest, too: 12 of its hexadecimal digits or more,
        which is how its own report names it. Raises `RegistryFailed` where there is no such thing,
        or a version that was retired.
        """
        head = self.require_head(model).entry
        if isinstance(reference, str) and reference in head.aliases:
            return head.aliases[reference]
        if isinstance(reference, str):
            reference = self._find_version(model, reference)
        kept = head.kept
        version = reference or max(kept, default=head.newest)
        if version > head.newest:
            raise self.not_registered_error(model, reference)
        if version not in kept:
            raise RegistryFailed(
                f"{model} version {version} was retired",
                expected=f"a version that is kept: {', '.join(map(str, kept)) or 'there is none'}",
                got="one whose packages may be gone",
                remedy=f"Name another one; 'handoff history {model}' tells who retired it",
            )
        return self.release_entry(model, version).pointer

    def choose(self, model: str, reference: str | int | None) -> tuple[Pointer, str]:
        """Return what `find` returns; of a name alone what is in production, else the newest kept.

        With it goes a sentence that says so, and what else there is; '' for what was named. Raises
        as `find` does.
        """
        if reference is not None:
            return self.find(model, reference), ""
        aliases = self.require_head(model).entry.aliases
        others = [f"{alias} {pointer.version}" for alias, pointer in sorted(aliases.items())
                  if alias != PRODUCTION]  # fmt: skip
        also = f" (other aliases: {', '.join(others)})" if others else ""
        if PRODUCTION in aliases:
            pointer = aliases[PRODUCTION]
            why = f"version {pointer.version}, which is in {PRODUCTION}"
            return pointer, f"{model} without a version or alias: {why}{also}"
        newest = self.find(model, None)
        why = f"version {newest.version}, the newest, as nothing is in {PRODUCTION}"
        return newest, f"{model} without a version or alias: {why}{also}"

    def _find_version(self, model: str, record: str) -> int:
        """Return the version whose record's digest begins with `record`."""
        if not _RECORD.fullmatch(record):
            raise self.not_registered_error(model, record)
        versions = {
            entry.version
            for entry in self.entries_newest_first(model)
            if entry.action == "release" and entry.manifest.hex.startswith(record)
        }
        if len(versions) != 1:
            raise self.not_registered_error(model, record)
        return versions.pop()

    def release_entry(self, model: str, version: int) -> LedgerEntry:
        """Return the ledger's entry that released a version."""
        data = self.store.read(version_key(model, version, ENTRY_FILE), ENVELOPE_LIMIT_BYTES)
        # Where the copy isn't written yet, or is another's, the ledger itself says it.
        entry = open_entry(data, self.trust, model) if data else None
        if entry and (entry.action, entry.version) == ("release", version):
            return entry
        for earlier in self.entries_newest_first(model):
            if (earlier.action, earlier.version) == ("release", version):
                return earlier
        raise self.not_registered_error(model, version)

    def read(self, model: str, pointer: Pointer) -> SignedRelease:
        """Return the version that `pointer` stands for, with signature and record verified."""
        what = f"the signature of {model} version {pointer.version}"
        envelope = self.objects.read_bytes(pointer.release, ENVELOPE_LIMIT_BYTES)
        claim = open_release(envelope, self.trust, what)
        if (claim.model, claim.version) != (model, pointer.version):
            raise PackageRefused(
                f"{what} is another's", expected=f"{model} version {pointer.version}",
                got=f"{claim.model} version {claim.version}",
                remedy="Somebody has changed the store: use nothing of it, and tell who releases",
            )  # fmt: skip
        data = self.objects.read_bytes(claim.manifest, MANIFEST_LIMIT_BYTES)
        match_manifest(claim, data, f"the record of {model} version {pointer.version}")
        manifest = parse_manifest(data)
        require_same_files(claim, manifest)
        return SignedRelease(claim, manifest, envelope, pointer.release)

    def parts(self, claim: Claim) -> dict[str, tuple[Part, ...]]:
        """Return the objects that make up each file of a version."""
        return read_parts(self.objects.read_bytes(claim.parts, PARTS_LIMIT_BYTES))

    def delivery_parts(self, claim: Claim) -> dict[str, tuple[Part, ...]]:
        """Return the objects that make up each file of a version's delivery; none if not kept."""
        if claim.delivery is None:
            return {}
        return read_parts(self.objects.read_bytes(claim.delivery, PARTS_LIMIT_BYTES))

    def objects_of(self, claim: Claim) -> Iterator[Digest]:
        """Give every object that a version's signature leads to; the signature is one more."""
        yield from (claim.manifest, claim.parts, *claim.evidence.values())
        if claim.delivery is not None:
            yield claim.delivery
        for parts in (*self.parts(claim).values(), *self.delivery_parts(claim).values()):
            yield from (part.digest for part in parts)

    def is_complete(self, model: str, pointer: Pointer) -> bool:
        """Return whether every object of a version is in the store, its kept delivery among them.

        One whose delivery is lost is not: who brings that delivery for a release uploads it then,
        and the version is whole again, where it would stay one that can't be rebuilt if it counted.
        One that was released before deliveries were kept is whole by what it has.
        """
        try:
            needed = list(dict.fromkeys(self.objects_of(self.read(model, pointer).claim)))
        except StoreFailed:
            return False
        with ThreadPoolExecutor(_READERS) as pool:
            return all(pool.map(self.objects.has, needed))

    def report(self, model: str, version: int) -> str:
        """Return the address of a version's report."""
        return f"{self.store.location}/{version_key(model, version, REPORT_FILE)}"

    def find_by_fingerprint(self, model: str, fingerprint: Digest) -> Pointer | None:
        """Return the version that was made from what `fingerprint` stands for, if one is kept.

        It goes by the copies, so that these have to be published before.
        """
        head = self.head(model)
        if head is None:
            return None
        hint = self.store.read(fingerprint_key(model, fingerprint), 32)
        if hint is None or not hint.strip().isdigit():
            return None
        version = int(hint)
        if version > head.entry.newest or version in head.entry.retired:
            return None
        entry = self.release_entry(model, version)
        return entry.pointer if entry.fingerprint == fingerprint else None

    def commit(self, envelope: bytes, model: str, sequence: int) -> bool:
        """Append a signed entry; return False where another writer was quicker.

        The entry has to be verified here, too: what can't be read back by whoever trusts the same
        keys is not written.
        """
        open_entry(envelope, self.trust, model, sequence)
        return self.store.create(ledger_key(model, sequence), envelope)

    def not_registered_error(self, model: str, reference: str | int | None) -> RegistryFailed:
        """Return the refusal for what was never released, with what there is."""
        models = self.models()
        head = self.head(model) if model in models else None
        remedy = "See 'handoff list'; 'handoff promote' sets an alias"
        if head is None:
            available = ", ".join(models[:20]) or "nothing"
            got = f"{available} registered in {self.store.location}"
            release = "Release it first: 'handoff release DELIVERY'"
            store_exists = "://" in self.store.location or Path(self.store.location).exists()
            if not store_exists:
                got += ", which isn't there"
                release = f"Check HANDOFF_STORE, or release it: {release.partition(': ')[2]}"
            remedy = did_you_mean(model, models, f"{release}. 'handoff list' shows what there is")
        else:
            aliases = sorted(head.entry.aliases)
            versions = ", ".join(map(str, head.entry.kept[-20:]))
            got = f"versions {versions}; aliases {', '.join(aliases) or 'none'}"
            if _RECORD.fullmatch(str(reference)):
                remedy = (
                    "A release that was refused has a record and no version: its report, and its "
                    "run in MLflow, say why"
                )
            remedy = did_you_mean(str(reference), aliases, remedy)
        name = model if reference is None else f"{model}@{reference}"
        return RegistryFailed(
            f"{name} is not registered", expected="a released model, and an alias or version of "
            "it", got=got, remedy=remedy,
        )  # fmt: skip

    def last(self, model: str, since: int) -> int:
        """Return the number of the newest entry from `since` on, unverified; 0 for none."""
        return max(self._list_sequences(model, since), default=0)

    def _last_sequence(self, model: str, seen: int) -> int:
        """Return the number of the newest entry, 0 where there is none.

        A ledger of years costs no more than a short one: what was seen before isn't listed again,
        but for the last of it, without which the ledger went back.
        """
        last = self.last(model, seen)
        if last or not seen:
            return last
        return max(self._list_sequences(model, 0), default=0)

    def _list_sequences(self, model: str, since: int) -> Iterable[int]:
        """Give the numbers of the entries from `since` on."""
        after = ledger_key(model, since - 1) if since else ""
        for stored in self.store.keys(f"{MODELS}{model}/ledger/", after):
            number = stored.key.rpartition("/")[2].removesuffix(".json")
            if number.isdigit():
                yield int(number)

    def _read_entry(self, model: str, sequence: int) -> LedgerHead:
        data = self.envelope(model, sequence)
        return LedgerHead(open_entry(data, self.trust, model, sequence), digest_bytes(data))

    def envelope(self, model: str, sequence: int) -> bytes:
        """Return an entry of the ledger as it lies in the store, unverified."""
        data = self.store.read(ledger_key(model, sequence), ENVELOPE_LIMIT_BYTES)
        if data is None:
            raise StoreFailed(
                f"entry {sequence} of {model}'s ledger is not in the store {self.store.location}",
                expected="every entry up to the newest", got="none",
                remedy="Somebody has removed it: bring it back from a backup",
            )  # fmt: skip
        return data


def open_releases(
    location: str, trusted: Iterable[str | Path], seen: Path | None, *, patience_s: float = 60.0
) -> Releases:
    """Return the releases in the store at `location`, signed by keys in the places `trusted`.

    A request to S3 is tried again for `patience_s` seconds when what is wrong may pass.
    """
    from handoff.artifacts.release.signing import read_trust
    from handoff.artifacts.stores.store import open_store

    seen_ledgers = SeenLedgers(seen) if seen else None
    store = open_store(location, patience_s=patience_s)
    return Releases(store, read_trust(trusted, may_lack=True), seen_ledgers)


def _broken_ledger(model: str, sequence: int) -> PackageRefused:
    return PackageRefused(
        f"{model}'s ledger is broken at entry {sequence}",
        expected="the digest of the entry before it", got="another",
        remedy="Somebody has changed the store: use nothing of it, and tell who releases",
    )  # fmt: skip
