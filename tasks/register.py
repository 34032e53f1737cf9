"""Register: objects first, then a version in the registry, the alias last."""

from __future__ import annotations

from artifacts.errors import StoreFailed
from artifacts.manifest import PackageFile
from artifacts.objects import Objects
from artifacts.registry import Registry, VersionEntry
from artifacts.steps import RegisterJob, RegisterResult
from artifacts.store import open_store
from tasks.assemble import require_accepted, require_trial_alias
from tasks.plots import pictures
from tasks.report import render


def run(job: RegisterJob) -> RegisterResult:
    """Keep every file of the release, then register it; running it again does nothing twice.

    Raises `BlessingRefused` for a release with a target that was not accepted, `StoreFailed` and
    `RegistryFailed`. Until the alias moves, nobody who asks for it sees anything new.
    """
    manifest = job.manifest
    require_accepted(manifest)
    if any(target.unverified for target in manifest.targets):
        require_trial_alias(manifest.recipe, job.alias)
    objects = Objects(open_store(job.stores.objects))
    for file in (*manifest.files, *[f for target in manifest.targets for f in target.files]):
        _require_digest(file, str(objects.put_file(job.folder / file.path)))
    objects.put_bytes(manifest.to_bytes())
    for name, picture in pictures(manifest):
        (job.folder / name).write_bytes(picture)
    registry = Registry(job.stores.tracking_uri, job.stores.artifact_root)
    entry = registry.register(
        manifest, job.folder, report=render(manifest), alias=job.alias, tags=job.tags
    )
    return result_of(entry)


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
