"""What a store has to hold: the versions that its ledgers keep, and the objects of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from handoff.artifacts.digest import Digest
from handoff.artifacts.release.ledger import LedgerEntry, Pointer
from handoff.artifacts.release.releases import Releases
from handoff.artifacts.stores.store import Store, Stored

OBJECTS = "objects/sha256/"


def kept_versions(entries: Iterable[LedgerEntry]) -> tuple[Pointer, ...]:
    """Return the versions of a whole ledger that were not retired, oldest first."""
    entries = tuple(entries)
    retired = entries[-1].retired if entries else ()
    kept = {
        entry.version: entry.pointer
        for entry in entries
        if entry.action == "release" and entry.version not in retired
    }
    return tuple(kept.values())


def objects_of(releases: Releases, model: str, pointer: Pointer) -> Iterator[Digest]:
    """Give every object of a version, its signature among them. Some are given twice."""
    claim = releases.read(model, pointer).claim
    yield from (pointer.release, *releases.objects_of(claim))


def held_objects(store: Store) -> dict[str, Stored]:
    """Return what the store says of each of its objects, by key."""
    return {stored.key: stored for stored in store.keys(OBJECTS)}
