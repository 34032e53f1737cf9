"""The store's copies for people: each version's files by their names, and what aliases point to.

They follow from the ledger. An interrupted writer leaves some unwritten, which the next one writes.
"""

from __future__ import annotations

from contextlib import suppress

from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.release.layout import (
    DELIVERY_FILE,
    ENTRY_FILE,
    PARTS_FILE,
    PARTS_LIMIT_BYTES,
    SUMS_FILE,
    alias_key,
    fingerprint_key,
    version_key,
)
from handoff.artifacts.release.manifest import MANIFEST_FILE
from handoff.artifacts.release.releases import LedgerHead, Releases
from handoff.artifacts.release.signing import ENVELOPE_LIMIT_BYTES
from handoff.artifacts.release.statement import RELEASE_FILE

EVIDENCE_LIMIT_BYTES = 64 << 20


def publish(releases: Releases, model: str) -> LedgerHead | None:
    """Write the copies that the ledger's state asks for and that aren't there; return that state.

    It is the newest entry, None where nothing was ever released.
    """
    head = releases.head(model)
    if head is None:
        return None
    missing = []
    for version in range(head.entry.newest, 0, -1):
        if version in head.entry.retired:
            continue
        if releases.store.stat(version_key(model, version, ENTRY_FILE)) is not None:
            break
        missing.append(version)
    # Oldest first: that one is there says, to whoever looks next, that those before it are.
    for version in reversed(missing):
        _publish_version(releases, model, version)
    for alias, pointer in head.entry.aliases.items():
        data = releases.envelope(model, pointer.entry)
        key = alias_key(model, alias)
        if releases.store.read(key, ENVELOPE_LIMIT_BYTES) != data:
            _write(releases, key, data)
    return head


def _publish_version(releases: Releases, model: str, version: int) -> None:
    entry = releases.release_entry(model, version)
    release = releases.read(model, entry.pointer)
    sums = "".join(f"{d.hex}  {path}\n" for path, d in sorted(release.claim.files.items()))
    copies = {
        MANIFEST_FILE: release.manifest.to_bytes(),
        RELEASE_FILE: release.envelope,
        SUMS_FILE: sums.encode(),
        PARTS_FILE: releases.objects.read_bytes(release.claim.parts, PARTS_LIMIT_BYTES),
    }
    if release.claim.delivery is not None:
        copies[DELIVERY_FILE] = releases.objects.read_bytes(
            release.claim.delivery, PARTS_LIMIT_BYTES
        )
    for name, digest in release.claim.evidence.items():
        copies[name] = releases.objects.read_bytes(digest, EVIDENCE_LIMIT_BYTES)
    for name, data in copies.items():
        _write(releases, version_key(model, version, name), data)
    _write(releases, fingerprint_key(model, entry.fingerprint), f"{version}\n".encode())
    # Last, since its being there says that the others are.
    envelope = releases.envelope(model, entry.sequence)
    _write(releases, version_key(model, version, ENTRY_FILE), envelope)


def _write(releases: Releases, key: str, data: bytes) -> None:
    """Write a copy, or leave none: one that may be damaged would be taken for the release."""
    try:
        releases.store.replace(key, data)
    except StoreFailed:
        with suppress(StoreFailed):
            releases.store.remove(key)
        raise
