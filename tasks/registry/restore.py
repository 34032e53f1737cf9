"""Restore: the delivery that a version was made from, out of the store, into a new folder.

What is fetched is verified against the digest in the version's signed record, so that it can be
released again as it was delivered. Nothing but the store is asked.
"""

from __future__ import annotations

from pathlib import Path

from handoff.artifacts.digest import Digest, digest_file, digest_folder, digest_tree
from handoff.artifacts.errors import PackageRefused, RegistryFailed
from handoff.artifacts.files.new_folder import becoming
from handoff.artifacts.release.releases import Releases, SignedRelease, open_releases
from handoff.infra.engine.progress import counter
from handoff.tasks.registry.messages import RestoreJob, RestoreResult


def run(job: RestoreJob) -> RestoreResult:
    """Write the delivery to `job.folder`, whole and verified, or not at all under that name.

    What an interrupted one has fetched is taken up by the next one, and a folder that is this
    delivery already is left as it is. Raises `RegistryFailed` for a version whose delivery was not
    kept, `StoreFailed`, `PackageRefused` for what isn't what was signed, and `UsageProblem` where
    the folder holds something else.
    """
    stores = job.stores
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    release = releases.read(job.model, releases.find(job.model, job.version))
    if release.claim.delivery is None:
        raise RegistryFailed(
            f"the delivery of {job.model} version {job.version} is not in the store",
            expected="a version whose delivery was kept with it",
            got="one that was released before deliveries were kept",
            remedy="Release it again from its folder; from then on it can be made from the store",
        )
    wanted = release.manifest.delivery
    if not (job.folder.is_dir() and digest_folder(job.folder) == wanted):
        with becoming(job.folder, wanted) as partial:
            _fetch(releases, release, partial)
    return RestoreResult(job.folder, wanted, release.manifest.lineage)


def _fetch(releases: Releases, release: SignedRelease, folder: Path) -> None:
    listed = releases.delivery_parts(release.claim)
    count = counter(sum(part.size_bytes for parts in listed.values() for part in parts))
    found: dict[str, Digest] = {}
    for name, parts in listed.items():
        _require_plain(name)
        path = folder / name
        if not path.exists():
            releases.objects.fetch_parts(parts, path, None, progress=count)
            path.chmod(0o644)
        found[name] = digest_file(path)
    # What a broken fetch of the same delivery left is listed, too.
    if digest_tree(found) != release.manifest.delivery or {*listed} != _names(folder):
        raise PackageRefused(
            f"what is kept as the delivery of {release.claim.model} version "
            f"{release.claim.version} is not what was released",
            expected=release.manifest.delivery.short, got=digest_tree(found).short,
            remedy="Don't use it, and tell who releases",
        )  # fmt: skip


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _require_plain(name: str) -> None:
    if "/" in name or "\\" in name or name.startswith("."):
        raise PackageRefused(
            "the list of a delivery's files names one that no delivery has",
            expected="plain names, all in one folder", got=repr(name[:80]),
            remedy="Don't use it, and tell who releases",
        )  # fmt: skip
