"""Collect garbage: remove from a store what it doesn't have to hold.

Needed is what any ledger's versions consist of, unless they were retired, and everything newer than
the grace, since a release that is being made is in no ledger yet. Where anything that is needed to
know this can't be read or isn't verified, nothing is removed at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.release.ledger import LedgerEntry, Pointer
from handoff.artifacts.release.releases import Releases, open_releases
from handoff.artifacts.stores.objects import GRACE, object_key
from handoff.artifacts.stores.store import Store, StoredKey
from handoff.tasks.registry.messages import CollectJob, CollectResult

OBJECTS = "objects/sha256/"


def kept_versions(entries: Iterable[LedgerEntry]) -> tuple[Pointer, ...]:
    """Return the versions of a whole ledger that were not retired, oldest first."""
    entries = tuple(entries)
    retired = entries[-1].retired if entries else ()
    pointers = {
        entry.version: entry.pointer
        for entry in entries
        if entry.action == "release" and entry.version not in retired
    }
    return tuple(pointers.values())


def objects_of(releases: Releases, model: str, pointer: Pointer) -> Iterator[Digest]:
    """Give every object of a version, its signature among them. Some are given twice."""
    claim = releases.read(model, pointer).claim
    yield from (pointer.release, *releases.objects_of(claim))


def stored_objects(store: Store) -> dict[str, StoredKey]:
    """Return what the store says of each of its objects, by key."""
    return {stored.key: stored for stored in store.keys(OBJECTS)}


def run(job: CollectJob) -> CollectResult:
    """Remove what isn't needed and is old enough; return how much that was.

    Raises `PackageRefused` and `StoreFailed` for a ledger or a release that can't be relied on.
    """
    grace = timedelta(hours=job.grace_h)
    if grace < GRACE:
        raise UsageProblem(
            "objects that are this new may belong to a release that is being made",
            expected=f"at least {GRACE.total_seconds() / 3600:g} hours", got=f"{job.grace_h:g}",
            remedy="Leave --older-than out",
        )  # fmt: skip
    stores = job.stores
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    # Of what a missing ledger needs nothing is known here: all of it would look unneeded.
    if missing := releases.missing():
        raise releases.missing_ledgers_error(missing)
    oldest = datetime.now(UTC) - grace
    objects = list(releases.store.keys(OBJECTS))
    # Asked after the list: what was released in between was uploaded within the grace.
    needed = {object_key(digest) for digest in _needed_objects(releases)}
    unneeded = [stored for stored in objects if stored.key not in needed]
    old = [stored for stored in unneeded if stored.modified < oldest]
    removed = (
        old if job.pretend else [s for s in old if _remove_unless_refreshed(releases, s, oldest)]
    )
    abandoned = 0 if job.pretend else _abandon_uploads(releases.store, oldest)
    kept = [stored for stored in objects if stored.key in needed]
    return CollectResult(
        kept=len(kept),
        kept_bytes=sum(stored.size_bytes for stored in kept),
        removed=len(removed),
        removed_bytes=sum(stored.size_bytes for stored in removed),
        spared=len(unneeded) - len(removed),
        abandoned=abandoned,
    )


def _abandon_uploads(store: Store, oldest: datetime) -> int:
    """Remove what uploads and self-tests left that never ended; return how many."""
    tests = [stored for stored in store.keys("selftest/") if stored.modified < oldest]
    for stored in tests:
        store.remove(stored.key)
    return len(tests) + store.abandon_uploads(oldest)


def _needed_objects(releases: Releases) -> Iterator[Digest]:
    for model in releases.models():
        for pointer in kept_versions(releases.entries(model)):
            yield from objects_of(releases, model, pointer)


def _remove_unless_refreshed(releases: Releases, stored: StoredKey, oldest: datetime) -> bool:
    """Remove an object, unless a release has asked for it and refreshed its time meanwhile."""
    now = releases.store.stat(stored.key)
    if now is None or now.modified >= oldest:
        return False
    releases.store.remove(stored.key)
    return True
