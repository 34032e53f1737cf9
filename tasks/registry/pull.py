"""Pull: a release's packages, or the delivery that it was made from, verified, into a new folder.

Nothing but the store is asked, and of what it gives nothing is believed: the ledger, the release
and its record are verified by their signature, every file by the digest that was signed.

A delivery is verified against the digest in the version's signed record, so that it can be released
again as it was delivered.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from handoff.artifacts.digest import Digest, digest_file, digest_folder, digest_tree
from handoff.artifacts.errors import PackageRefused, RegistryFailed, StoreFailed, UsageProblem
from handoff.artifacts.files.writing import staged_folder, write_atomically
from handoff.artifacts.recipe.compatibility import best_of
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, PackageFile, TargetRecord
from handoff.artifacts.release.package import check_release
from handoff.artifacts.release.releases import Releases, SignedRelease, open_releases
from handoff.artifacts.release.statement import RELEASE_FILE
from handoff.artifacts.serve.archive import require_known_members
from handoff.artifacts.serve.sealing import check_file
from handoff.artifacts.serve.triton import CONFIG_FILE, PACKAGE_FILE, model_config
from handoff.infra.engine.progress import counter
from handoff.tasks.registry.messages import PullJob, PullResult, RestoreJob, RestoreResult

# Called with what is fetched: the file's path, bytes since the last call, bytes in all.
Progress = Callable[[str, int, int], None]


def run(job: PullJob, progress: Progress | None = None) -> PullResult:
    """Write the release to `job.to`, whole and verified, or not at all.

    What an interrupted pull has fetched is taken up by the next one. Raises `RegistryFailed`,
    `StoreFailed`, `PackageRefused` for what isn't signed as it should be and when nothing in the
    release fits this machine, and `UsageProblem` when the folder holds something else.
    """
    stores = job.stores
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    pointer, chosen = releases.choose(job.name, job.reference)
    release = releases.read(job.name, pointer)
    target = choose_target(release.manifest, job.target, job.torch_version)
    digest = release.manifest.digest
    result = PullResult(job.to, job.name, pointer.version, target.slug, digest, chosen)
    if job.layout == "triton" and job.to is not None:
        folder = write_for_triton(releases, release, target, job.to, progress)
        return replace(result, folder=folder)
    if job.to is None:
        with tempfile.TemporaryDirectory(prefix="handoff-verify-") as scratch:
            fetch(releases, release, _files_for(release, target), Path(scratch), progress)
        return result
    write_release(releases, release, target, job.to, progress)
    return result


def write_release(
    releases: Releases,
    release: SignedRelease,
    target: TargetRecord,
    to: Path,
    progress: Progress | None = None,
) -> None:
    """Write a version's record and its packages for one target to the folder `to`, or nothing.

    A folder that holds this very release already stays as it is. Raises as `run` does.
    """
    if _is_pulled(to, release, target, releases):
        return
    with staged_folder(to, release.digest) as partial:
        fetch(releases, release, _files_for(release, target), partial, progress)


def write_for_triton(
    releases: Releases,
    release: SignedRelease,
    target: TargetRecord,
    repository: Path,
    progress: Progress | None = None,
) -> Path:
    """Let the version be the one that Triton serves of a model repository; return its folder.

    Its folder is there whole before the model's configuration, which is replaced as one file, names
    it; versions that were pulled before stay beside it, for a rollback. Raises as `run` does, and
    `UsageProblem` for a model that Triton's backend doesn't take.
    """
    manifest, version = release.manifest, release.claim.version
    config = model_config(manifest, target, version)
    (package,) = (file for file in target.files if file.path == f"{target.slug}/{PACKAGE_FILE}")
    model = repository / manifest.model
    folder = model / str(version)
    if not folder.exists():
        with staged_folder(folder, release.digest) as partial:
            fetch(releases, release, (package,), partial, progress)
            _require_plain_archive(partial / package.path)
            (partial / package.path).rename(partial / PACKAGE_FILE)
            (partial / target.slug).rmdir()
    check_file(folder, replace(package, path=PACKAGE_FILE))
    write_atomically(model / CONFIG_FILE, config, mode=0o644)
    return folder


def _require_plain_archive(package: Path) -> None:
    """Raise `PackageRefused` for an archive that would be unpacked beside its folder."""
    with package.open("rb") as stream:
        require_known_members(stream.fileno(), package.name)


def choose_target(manifest: Manifest, slug: str, torch_version: str | None) -> TargetRecord:
    """Return the target named `slug`, or for `auto` the best one that fits this machine.

    Targets stand in the manifest as the recipe names them; of those that fit, the one that asks
    most of the processor is the best, and of those for GPUs the nearest to the one here. A target
    that is named may be one for another machine.
    """
    accepted = [target for target in manifest.targets if target.accepted and target.fit]
    if slug != "auto":
        # One that is not yet verified has to come to its GPU to be.
        available = [*accepted, *(target for target in manifest.targets if target.unverified)]
        matches = [target for target in available if target.slug == slug]
        if matches:
            return matches[0]
        raise UsageProblem(
            f"{manifest.model} has no package for {slug[:60]}",
            expected=f"auto, or one of {', '.join(t.slug for t in available)}", got=slug[:60],
            remedy="Name one of these, or release the model for that target",
        )  # fmt: skip
    misfits = {}
    fitting = []
    for target in accepted:
        assert target.fit is not None
        if misfit := target.fit.misfit(torch_version):
            misfits[target.slug] = misfit
        else:
            fitting.append((target.fit, target))
    if not fitting:
        raise PackageRefused(
            f"nothing in this release of {manifest.model} runs on this machine",
            expected="a package that fits it",
            got="; ".join(f"{name}: {why}" for name, why in misfits.items()) or "no package",
            remedy="Release the model for this machine, or name another machine's with --for",
        )
    return fitting[best_of([fit for fit, _ in fitting])][1]


def fetch(
    releases: Releases,
    release: SignedRelease,
    files: Iterable[PackageFile],
    folder: Path,
    progress: Progress | None = None,
) -> None:
    """Write the files of a version, its record and its signature to `folder`, each verified.

    A file that is there already was verified when it got its name, and stays.
    """
    parts = releases.parts(release.claim)
    for file in files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _require_listed(file, parts)
            file_progress = None if progress is None else _file_progress(progress, file)
            releases.objects.fetch_parts(
                parts[file.path], path, file.digest, progress=file_progress
            )
            path.chmod(0o755 if path.suffix == ".so" else 0o644)
    (folder / MANIFEST_FILE).write_bytes(release.manifest.to_bytes())
    (folder / RELEASE_FILE).write_bytes(release.envelope)


def _files_for(release: SignedRelease, target: TargetRecord) -> tuple[PackageFile, ...]:
    return (*release.manifest.files, *target.files)


def _file_progress(progress: Progress, file: PackageFile) -> Callable[[int], None]:
    return lambda count: progress(file.path, count, file.size_bytes)


def _require_listed(file: PackageFile, parts: object) -> None:
    if file.path not in parts:  # type: ignore[operator]
        raise StoreFailed(
            f"the release doesn't say what {file.path} is kept as", expected="its parts",
            got="none", remedy="Tell who releases: the release was not whole when it was signed",
        )  # fmt: skip


def _is_pulled(
    folder: Path, release: SignedRelease, target: TargetRecord, releases: Releases
) -> bool:
    """Return whether `folder` is this very release, whole: then there is nothing to fetch."""
    if not (folder / RELEASE_FILE).exists():
        return False
    try:
        checked = check_release(folder, None, releases.trust)
    except PackageRefused:
        return False
    actual = (checked.claim.version, checked.manifest.digest)
    return actual == (release.claim.version, release.manifest.digest) and checked.targets == (
        target.slug,
    )


def restore(job: RestoreJob) -> RestoreResult:
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
    digest = release.manifest.delivery
    if not (job.folder.is_dir() and digest_folder(job.folder) == digest):
        with staged_folder(job.folder, digest) as partial:
            _fetch_delivery(releases, release, partial)
    return RestoreResult(job.folder, digest, release.manifest.lineage)


def _fetch_delivery(releases: Releases, release: SignedRelease, folder: Path) -> None:
    listed = releases.delivery_parts(release.claim)
    count = counter(sum(part.size_bytes for parts in listed.values() for part in parts))
    digests: dict[str, Digest] = {}
    for name, parts in listed.items():
        _require_plain_name(name)
        path = folder / name
        if not path.exists():
            releases.objects.fetch_parts(parts, path, None, progress=count)
            path.chmod(0o644)
        digests[name] = digest_file(path)
    # What a broken fetch of the same delivery left is listed, too.
    if digest_tree(digests) != release.manifest.delivery or {*listed} != {
        path.name for path in folder.iterdir()
    }:
        raise PackageRefused(
            f"what is kept as the delivery of {release.claim.model} version "
            f"{release.claim.version} is not what was released",
            expected=release.manifest.delivery.short, got=digest_tree(digests).short,
            remedy="Don't use it, and tell who releases",
        )  # fmt: skip


def _require_plain_name(name: str) -> None:
    if "/" in name or "\\" in name or name.startswith("."):
        raise PackageRefused(
            "the list of a delivery's files names one that no delivery has",
            expected="plain names, all in one folder", got=repr(name[:80]),
            remedy="Don't use it, and tell who releases",
        )  # fmt: skip
