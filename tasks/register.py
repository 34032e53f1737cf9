"""Register: objects first, then a version in the registry, the alias last."""

from __future__ import annotations

from artifacts.errors import StoreFailed
from artifacts.manifest import PackageFile
from artifacts.old_registry import Registry, VersionEntry
from artifacts.registry import Catalogue
from artifacts.statement import RELEASE_FILE, Claim, release_files
from artifacts.steps import RegisterJob, RegisterResult
from artifacts.store import open_store
from tasks.assemble import require_accepted, require_trial_alias
from tasks.evidence import evidence


def run(job: RegisterJob) -> RegisterResult:
    """Keep every file of the release, then register it; running it again does nothing twice.

    Raises `BlessingRefused` for a release with a target that was not accepted, `StoreFailed` and
    `RegistryFailed`. Until the alias moves, nobody who asks for it sees anything new.
    """
    manifest = job.manifest
    require_accepted(manifest)
    if any(target.unverified for target in manifest.targets):
        require_trial_alias(manifest.recipe, job.alias)
    store = open_store(job.stores.objects)
    for file in release_files(manifest):
        _require_digest(file, str(store.put_file(job.folder / file.path)))
    store.put_bytes(manifest.to_bytes())
    (job.folder / RELEASE_FILE).write_bytes(b"{}\n")
    catalogue = Catalogue(job.stores.tracking_uri, job.stores.artifact_root)
    listed = catalogue.listed(manifest.model)
    same = [v for v, one in listed.items() if one.manifest == manifest.digest]
    version = max(same, default=max(listed, default=0) + 1)
    files = {file.path: file.digest for file in release_files(manifest)}
    claim = Claim(manifest.model, version, manifest.digest, files, manifest.digest, {})
    entry = catalogue.list_release(
        claim, manifest, job.folder,
        release=manifest.digest, evidence=evidence(manifest), tags=job.tags,
    )  # fmt: skip
    catalogue.point(manifest.model, {job.alias: version})
    registry = Registry(job.stores.tracking_uri, job.stores.artifact_root)
    return result_of(registry.find(manifest.model, entry.version))


def result_of(entry: VersionEntry) -> RegisterResult:
    """Return a registered version as the step's result."""
    return RegisterResult(
        entry.name, entry.version, entry.aliases, entry.manifest, entry.report, entry.run_id
    )


def _require_digest(file: PackageFile, found: str) -> None:
    if found != file.digest:
        raise StoreFailed(
            f"{file.path} changed after it was verified", expected=file.digest.short,
            got=found[7:19], remedy="Run the release again, and find out what writes there",
        )  # fmt: skip
