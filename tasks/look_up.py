"""Look up whether this very release was made before.

Compiling takes most of a release's time, and the same delivery, recipe and toolchain make the same
packages: such a release is found again rather than made again.
"""

from __future__ import annotations

from dataclasses import replace

from artifacts.digest import Digest
from artifacts.errors import StoreFailed
from artifacts.manifest import MANIFEST_LIMIT_BYTES, parse_manifest
from artifacts.old_registry import Registry
from artifacts.steps import LookUpJob, LookUpResult
from artifacts.store import open_store
from tasks.register import result_of


def run(job: LookUpJob) -> LookUpResult:
    """Return the version that was made from the same, when its files are still in the store."""
    registry = Registry(job.stores.tracking_uri, job.stores.artifact_root)
    entry = registry.find_fingerprint(job.model, job.fingerprint)
    if entry is None or not _is_whole(entry.manifest, job.stores.objects):
        return LookUpResult(None)
    if job.alias not in entry.aliases:
        registry.set_alias(job.model, job.alias, entry.version)
        entry = replace(entry, aliases=tuple(sorted({*entry.aliases, job.alias})))
    return LookUpResult(result_of(entry))


def _is_whole(manifest_digest: Digest, objects: str) -> bool:
    store = open_store(objects)
    try:
        data = store.read_bytes(manifest_digest, limit=MANIFEST_LIMIT_BYTES)
    except StoreFailed:
        return False
    manifest = parse_manifest(data)
    files = [*manifest.files, *[file for target in manifest.targets for file in target.files]]
    return all(store.has(file.digest) for file in files)
