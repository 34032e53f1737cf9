"""Pull: a release's manifest and the packages that fit a machine, checked, into a new folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from artifacts.digest import digest_file
from artifacts.errors import PackageRefused, UsageProblem
from artifacts.manifest import (
    MANIFEST_FILE,
    MANIFEST_LIMIT_BYTES,
    Manifest,
    TargetRecord,
    parse_manifest,
)
from artifacts.old_registry import Registry
from artifacts.package import check_packages
from artifacts.steps import PullJob, PullResult
from artifacts.store import ObjectStore, open_store


def run(job: PullJob) -> PullResult:
    """Write the release to `job.to`, whole and checked, or not at all.

    Raises `RegistryFailed`, `StoreFailed`, `PackageRefused` when nothing in the release fits this
    machine, and `UsageProblem` when the folder holds something else.
    """
    registry = Registry(job.stores.tracking_uri, job.stores.artifact_root)
    entry = registry.find(job.name, job.reference)
    store = open_store(job.stores.objects)
    manifest = parse_manifest(store.read_bytes(entry.manifest, limit=MANIFEST_LIMIT_BYTES))
    target = choose_target(manifest, job.target, job.torch_version)
    result = PullResult(job.to, manifest.model, entry.version, target.slug, manifest.digest)
    if _holds(job.to, manifest, target, job.torch_version):
        return result
    _require_free(job.to)
    job.to.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=job.to.parent, prefix=f".{job.to.name}."))
    try:
        _fetch(store, manifest, target, partial)
        partial.chmod(0o755)
        if job.to.exists():
            job.to.rmdir()
        partial.rename(job.to)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return result


def choose_target(manifest: Manifest, wanted: str, torch_version: str | None) -> TargetRecord:
    """Return the target named `wanted`, or for `auto` the best one that fits this machine.

    Targets stand in the manifest as the recipe names them; of those that fit, the one that asks
    most of the processor is the best. A target that is named may be one for another machine.
    """
    accepted = [target for target in manifest.targets if target.accepted and target.fit]
    if wanted != "auto":
        # One that is not yet verified has to come to its GPU to be.
        there = [*accepted, *(target for target in manifest.targets if target.unverified)]
        named = [target for target in there if target.slug == wanted]
        if named:
            return named[0]
        raise UsageProblem(
            f"{manifest.model} has no package for {wanted[:60]}",
            expected=f"auto, or one of {', '.join(t.slug for t in there)}", got=wanted[:60],
            remedy="Name one of these, or release the model for that target",
        )  # fmt: skip
    misfits = {}
    fitting = []
    for target in accepted:
        assert target.fit is not None
        if misfit := target.fit.misfit(torch_version):
            misfits[target.slug] = misfit
        else:
            fitting.append((len(target.fit.cpu_flags), target))
    if not fitting:
        raise PackageRefused(
            f"nothing in this release of {manifest.model} runs on this machine",
            expected="a package that fits it",
            got="; ".join(f"{slug}: {why}" for slug, why in misfits.items()) or "no package",
            remedy="Release the model for this machine, or name a target to fetch it all the same",
        )
    return max(fitting, key=lambda pair: pair[0])[1]


def _fetch(store: ObjectStore, manifest: Manifest, target: TargetRecord, folder: Path) -> None:
    for file in (*manifest.files, *target.files):
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        store.fetch(file.digest, path)
        path.chmod(0o755 if path.suffix == ".so" else 0o644)
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())


def _holds(
    folder: Path, manifest: Manifest, target: TargetRecord, torch_version: str | None
) -> bool:
    """Tell whether `folder` is this very release, whole: then there is nothing to fetch."""
    if not (folder / MANIFEST_FILE).exists():
        return False
    try:
        if digest_file(folder / MANIFEST_FILE) != manifest.digest:
            return False
        return target.slug in check_packages(folder, manifest, torch_version)
    except PackageRefused:
        return False


def _require_free(folder: Path) -> None:
    if not folder.exists() or (folder.is_dir() and not any(os.scandir(folder))):
        return
    raise UsageProblem(
        f"{folder} can't be pulled into", expected="a new or an empty folder, or the same release",
        got="a file" if folder.is_file() else "a folder with something else in it",
        remedy="Name another folder with --to, or remove that one",
    )  # fmt: skip
