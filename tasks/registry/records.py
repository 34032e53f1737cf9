"""Read the records of versions: what they are, without their packages."""

from __future__ import annotations

from handoff.artifacts.release.releases import open_releases
from handoff.tasks.registry.messages import Records, RecordsJob


def run(job: RecordsJob) -> Records:
    """Return the records; raise `RegistryFailed`, `StoreFailed` or `PackageRefused`."""
    stores = job.stores
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    found = [releases.read(job.model, releases.find(job.model, one)) for one in job.versions]
    return Records(tuple(release.manifest for release in found))
