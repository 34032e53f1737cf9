"""The releases in a store: a model's ledger, aliases and versions, verified as they are read.

    models/<name>/ledger/00000008.json          the ledger: creating the next entry is the commit
    models/<name>/versions/3/                   what a person with an S3 client looks for:
        manifest.json, release.dsse.json        the record, and the signature over it and all files
        SHA256SUMS                              what `sha256sum -c` takes
        PARTS                                   the objects that make up each file, in their order
        ledger.dsse.json                        the ledger's entry that released it
    models/<name>/aliases/production.json       the ledger's entry that moved the alias last
    models/<name>/fingerprints/<hex>            the version that was made from the same

Everything but the ledger is a copy, which `publish` writes: an interrupted one is finished by
whoever writes next, and nobody who verifies relies on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from artifacts.digest import Digest, digest_bytes
from artifacts.errors import PackageRefused, RegistryFailed, StoreFailed
from artifacts.ledger import LedgerEntry, Pointer, open_entry
from artifacts.manifest import MANIFEST_FILE, MANIFEST_LIMIT_BYTES, Manifest, parse_manifest
from artifacts.objects import Objects
from artifacts.part_list import PARTS_FILE, PARTS_LIMIT_BYTES, read_parts
from artifacts.parts import Part
from artifacts.seen import SeenLedgers
from artifacts.signing import ENVELOPE_LIMIT_BYTES, Trust
from artifacts.statement import (
    RELEASE_FILE,
    Claim,
    match_manifest,
    open_release,
    require_same_files,
)
from artifacts.store import Store

SUMS_FILE = "SHA256SUMS"
ENTRY_FILE = "ledger.dsse.json"
_READERS = 16


@dataclass(frozen=True)
class Head:
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
        return self.store.names("models/")

    def head(self, model: str) -> Head | None:
        """Return the newest entry of a model's ledger; None where nothing was ever released.

        Raises `PackageRefused` for an entry that isn't verified, and for a ledger that is shorter
        than it was when this machine looked at it before.
        """
        place = (self.store.location, model)
        # Asked before the store is: meanwhile another process may append an entry and note it.
        seen = self._seen.newest(*place) if self._seen else (0, "")
        last = max(self._sequences(model), default=0)
        head = self._entry(model, last) if last else None
        if self._seen is not None:
            newest = (head.entry.sequence, str(head.digest)) if head else (0, "")
            self._seen.note(*place, newest, since=seen)
        return head

    def require_head(self, model: str) -> Head:
        """Return the newest entry; raise `RegistryFailed` where nothing was released."""
        head = self.head(model)
        if head is None:
            raise self.unknown(model, None)
        return head

    def entries(self, model: str) -> tuple[LedgerEntry, ...]:
        """Return the whole ledger, oldest first.

        Raises `PackageRefused` where an entry is missing, isn't verified, or doesn't follow from
        the one before it.
        """
        head = self.head(model)
        if head is None:
            return ()
        with ThreadPoolExecutor(_READERS) as pool:
            found = list(
                pool.map(lambda n: self._entry(model, n), range(1, head.entry.sequence + 1))
            )
        before = ""
        for one in found:
            if one.entry.previous != before:
                raise _broken(model, one.entry.sequence)
            before = one.digest
        return tuple(one.entry for one in found)

    def entry(self, model: str, sequence: int) -> LedgerEntry:
        """Return one entry of a model's ledger."""
        return self._entry(model, sequence).entry

    def find(self, model: str, reference: str | int | None) -> Pointer:
        """Return what an alias or a version's number stands for; the newest version for None.

        Raises `RegistryFailed` where there is no such thing, or a version that was retired.
        """
        head = self.require_head(model).entry
        if isinstance(reference, str):
            if reference not in head.aliases:
                raise self.unknown(model, reference)
            return head.aliases[reference]
        version = reference or head.newest
        if version > head.newest:
            raise self.unknown(model, reference)
        if version in head.retired:
            raise RegistryFailed(
                f"{model} version {version} was retired", expected="a version that is kept",
                got="one whose packages may be gone", remedy=f"See 'handoff history {model}'",
            )  # fmt: skip
        entry = self.released(model, version)
        return Pointer(version, entry.release, "release", entry.sequence)

    def released(self, model: str, version: int) -> LedgerEntry:
        """Return the ledger's entry that released a version."""
        data = self.store.read(version_key(model, version, ENTRY_FILE), ENVELOPE_LIMIT_BYTES)
        # Where the copy isn't written yet, or is another's, the ledger itself says it.
        entry = open_entry(data, self.trust, model) if data else None
        if entry and (entry.action, entry.version) == ("release", version):
            return entry
        for found in self.entries(model):
            if (found.action, found.version) == ("release", version):
                return found
        raise self.unknown(model, version)

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

    def made_from(self, model: str, fingerprint: Digest) -> Pointer | None:
        """Return the version that was made from what `fingerprint` stands for, if one is kept."""
        head = self.head(model)
        if head is None:
            return None
        self.publish(model)
        hint = self.store.read(f"models/{model}/fingerprints/{fingerprint.hex}", 32)
        if hint is None or not hint.strip().isdigit():
            return None
        version = int(hint)
        if version > head.entry.newest or version in head.entry.retired:
            return None
        entry = self.released(model, version)
        if entry.fingerprint != fingerprint:
            return None
        return Pointer(version, entry.release, "release", entry.sequence)

    def commit(self, envelope: bytes, model: str, sequence: int) -> bool:
        """Append a signed entry; return False where another writer was quicker.

        The entry has to be verified here, too: what can't be read back by who trusts the same
        keys is not written.
        """
        open_entry(envelope, self.trust, model, sequence)
        return self.store.create(ledger_key(model, sequence), envelope)

    def publish(self, model: str) -> None:
        """Write the copies for people that the ledger's state asks for and that aren't there."""
        head = self.head(model)
        if head is None:
            return
        missing = []
        for version in range(head.entry.newest, 0, -1):
            if version in head.entry.retired:
                continue
            if self.store.stat(version_key(model, version, ENTRY_FILE)) is not None:
                break
            missing.append(version)
        # Oldest first: that one is there says, to who looks next, that those before it are.
        for version in reversed(missing):
            self._publish_version(model, version)
        for alias, pointer in head.entry.aliases.items():
            data = self._envelope(model, pointer.entry)
            key = f"models/{model}/aliases/{alias}.json"
            if self.store.read(key, ENVELOPE_LIMIT_BYTES) != data:
                self.store.replace(key, data)

    def unknown(self, model: str, reference: str | int | None) -> RegistryFailed:
        """Return the refusal for what was never released."""
        known = ", ".join(self.models()[:20]) or "nothing"
        wanted = model if reference is None else f"{model}@{reference}"
        return RegistryFailed(
            f"{wanted} is not registered", expected="a released model, and an alias or version of "
            "it", got=f"{known} registered", remedy="See 'handoff list' and 'handoff show NAME'",
        )  # fmt: skip

    def _publish_version(self, model: str, version: int) -> None:
        entry = self.released(model, version)
        found = self.read(model, Pointer(version, entry.release, "release", entry.sequence))
        parts = self.objects.read_bytes(found.claim.parts, PARTS_LIMIT_BYTES)
        sums = "".join(f"{d.hex}  {path}\n" for path, d in sorted(found.claim.files.items()))
        copies = {
            MANIFEST_FILE: found.manifest.to_bytes(),
            RELEASE_FILE: found.envelope,
            SUMS_FILE: sums.encode(),
            PARTS_FILE: parts,
        }
        for name, data in copies.items():
            self.store.replace(version_key(model, version, name), data)
        hint = f"models/{model}/fingerprints/{entry.fingerprint.hex}"
        self.store.replace(hint, f"{version}\n".encode())
        # Last, since its being there says that the others are.
        self.store.replace(
            version_key(model, version, ENTRY_FILE), self._envelope(model, entry.sequence)
        )

    def _sequences(self, model: str) -> Iterable[int]:
        for stored in self.store.keys(f"models/{model}/ledger/"):
            number = stored.key.rpartition("/")[2].removesuffix(".json")
            if number.isdigit():
                yield int(number)

    def _entry(self, model: str, sequence: int) -> Head:
        data = self._envelope(model, sequence)
        return Head(open_entry(data, self.trust, model, sequence), digest_bytes(data))

    def _envelope(self, model: str, sequence: int) -> bytes:
        data = self.store.read(ledger_key(model, sequence), ENVELOPE_LIMIT_BYTES)
        if data is None:
            raise StoreFailed(
                f"entry {sequence} of {model}'s ledger is not in the store {self.store.location}",
                expected="every entry up to the newest", got="none",
                remedy="Somebody has removed it: bring it back from a backup",
            )  # fmt: skip
        return data


def ledger_key(model: str, sequence: int) -> str:
    """Return where an entry of a model's ledger lies below the store's root."""
    return f"models/{model}/ledger/{sequence:08}.json"


def version_key(model: str, version: int, name: str) -> str:
    """Return where a copy for people lies below the store's root."""
    return f"models/{model}/versions/{version}/{name}"


def open_releases(location: str, trusted: Iterable[str | Path], seen: Path | None) -> Releases:
    """Return the releases in the store at `location`, signed by keys in the places `trusted`."""
    from artifacts.signing import read_trust
    from artifacts.store import open_store

    remembered = SeenLedgers(seen) if seen else None
    return Releases(open_store(location), read_trust(trusted), remembered)


def _broken(model: str, sequence: int) -> PackageRefused:
    return PackageRefused(
        f"{model}'s ledger is broken at entry {sequence}",
        expected="the digest of the entry before it", got="another",
        remedy="Somebody has changed the store: use nothing of it, and tell who releases",
    )  # fmt: skip
