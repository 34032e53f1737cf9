"""Fetch: a delivery from where it lies into a new folder, whole or not at all.

Nothing of what is fetched is executed, and nothing of it is looked at beyond names and sizes: what
it is worth, intake finds out.
"""

from __future__ import annotations

from pathlib import Path

from handoff.artifacts.delivery.uri import (
    ArchiveSource,
    GitSource,
    LocalSource,
    S3Source,
    parse_delivery_uri,
)
from handoff.artifacts.digest import digest_folder
from handoff.artifacts.errors import DeliveryUnreadable, UsageProblem
from handoff.artifacts.files.new_folder import scratch_folder
from handoff.artifacts.stores.s3_reading import S3Place
from handoff.tasks.fetch.budget import Budget
from handoff.tasks.fetch.copying import copy_file, copy_folder, require_there
from handoff.tasks.fetch.downloading import download
from handoff.tasks.fetch.git import read_commit
from handoff.tasks.fetch.messages import FetchJob, FetchResult
from handoff.tasks.fetch.unpacking import unpack


def run(job: FetchJob) -> FetchResult:
    """Write the delivery to `job.folder`; return what came.

    Raises `UsageProblem` for a bad address, `DeliveryUnreachable` for what may come another time,
    and `DeliveryUnreadable` for what never will.
    """
    source = parse_delivery_uri(job.uri)
    if job.folder.exists():
        raise UsageProblem(
            f"{job.folder} is there already", expected="a new folder", got="one with that name",
            remedy="Name another folder",
        )  # fmt: skip
    budget = Budget(job.limits)
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(job.folder.parent, f".{job.folder.name}-") as scratch:
        arrived = _fetch(source, scratch, budget)
        files = [path for path in arrived.rglob("*") if path.is_file()]
        if not files:
            raise DeliveryUnreadable(
                "the delivery is empty", expected="the files of a delivery", got="none",
                remedy="Does the address name the delivery's folder?",
            )  # fmt: skip
        digest = digest_folder(arrived)
        size_bytes = sum(path.stat().st_size for path in files)
        arrived.rename(job.folder)
    return FetchResult(job.folder, digest, len(files), size_bytes)


def _fetch(
    source: LocalSource | S3Source | ArchiveSource | GitSource, scratch: Path, budget: Budget
) -> Path:
    """Bring the delivery into `scratch`, and return its folder there."""
    folder, archive = scratch / "delivery", scratch / "archive"
    match source:
        case LocalSource():
            require_there(source.path)
            if source.path.is_dir():
                copy_folder(source.path.resolve(), folder, budget)
                return folder
            copy_file(source.path, archive, Budget(budget.limits))
        case S3Source():
            place = S3Place(source.bucket, source.key)
            found = place.find_object()
            if found is None:
                _download_all(place, folder, budget)
                return folder
            # The archive itself, and then what is in it.
            whole = Budget(budget.limits)
            whole.require_room(found.size_bytes)
            place.download(found, archive, whole.check_time)
        case ArchiveSource():
            download(source, archive, budget)
        case GitSource():
            read_commit(source, folder, scratch, budget)
            return folder
    return unpack(archive, folder, budget)


def _download_all(place: S3Place, folder: Path, budget: Budget) -> None:
    found = place.objects(budget.limits.files)
    folder.mkdir()
    budget.require_room(sum(one.size_bytes for one in found))
    for one in found:
        path = folder / budget.take_name(one.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        budget.take_bytes(one.size_bytes)
        place.download(one, path, budget.check_time)
