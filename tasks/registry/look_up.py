"""Look up what a store has: whether this very release was made before, and versions' records.

Compiling takes most of a release's time, and the same delivery, recipe and toolchain make the same
packages: such a release is found again rather than made again.
"""

from __future__ import annotations

from handoff.artifacts.errors import PackageRefused, StoreFailed
from handoff.artifacts.release.copies import publish
from handoff.artifacts.release.evidence import ServedTiming, ServedVersion
from handoff.artifacts.release.releases import LedgerHead, Releases, open_releases
from handoff.tasks.compile.toolchain import changes_since
from handoff.tasks.registry.draft import require_free_alias, require_intended_alias
from handoff.tasks.registry.messages import LookUpJob, LookUpResult, Records, RecordsJob


def run(job: LookUpJob) -> LookUpResult:
    """Return the version that was made from the same, when its files are still in the store.

    Raises `UsageProblem` where the release's alias is not its own to move, and `StoreUnreachable`
    for a store that lacks all ledgers which this machine has seen in it: both are better reported
    before anything is compiled.
    """
    stores = job.stores
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    releases.require_ledgers()
    head = releases.head(job.model)
    require_free_alias(head.entry if head else None, job.alias)
    how = f"Else release it, and 'handoff promote {job.model} --to {job.alias} --new-alias'"
    require_intended_alias(job.model, job.alias, head.entry.aliases if head else (), how)
    publish(releases, job.model)
    found = releases.find_by_fingerprint(job.model, job.fingerprint)
    if head is None or found is None or not releases.is_complete(job.model, found):
        return LookUpResult(None, served=_read_served(releases, head, job))
    manifest = releases.release_entry(job.model, found.version).manifest
    return LookUpResult(found.version, manifest)


def _read_served(
    releases: Releases, head: LedgerHead | None, job: LookUpJob
) -> ServedVersion | None:
    pointer = head.entry.aliases.get("production") if head else None
    if pointer is None:
        return None
    try:
        manifest = releases.read(job.model, pointer).manifest
    except (PackageRefused, StoreFailed):
        # Whoever loads it is told what is wrong with it; a new version is the way out.
        return None
    timings = (
        ServedTiming(
            target.slug, t.case, t.speedup, t.speedup_low, t.speedup_high, t.over_eager.is_blurred
        )
        for target in manifest.targets
        for t in target.timings
    )
    return ServedVersion(
        pointer.version,
        tuple(changes_since(manifest, job.delivery, job.recipe, job.compiler)),
        tuple(timings),
    )


def read_records(job: RecordsJob) -> Records:
    """Return the records; raise `RegistryFailed`, `StoreFailed` or `PackageRefused`."""
    stores = job.stores
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    found = [releases.read(job.model, releases.find(job.model, one)) for one in job.versions]
    return Records(tuple(release.manifest for release in found))
