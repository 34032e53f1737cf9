"""Folders that go through the store from one machine of a stack to another."""

from __future__ import annotations

from pathlib import PurePosixPath

from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.files.writing import staged_folder
from handoff.artifacts.release.layout import PARTS_LIMIT_BYTES, read_parts, write_parts
from handoff.artifacts.stores.objects import Objects
from handoff.artifacts.stores.store import open_store
from handoff.infra.engine.progress import counter
from handoff.tasks.compile.shared_weights import DeliveredTensors, delivered_parts
from handoff.tasks.fetch.messages import ReceiveJob, ReceiveResult, SendJob, SendResult


def send(job: SendJob) -> SendResult:
    """Keep every file; raise `StoreFailed`. What the store knows already isn't sent again."""
    objects = Objects(open_store(job.stores.objects))
    paths = sorted(path for path in job.folder.rglob("*") if path.is_file())
    count = counter(sum(path.stat().st_size for path in paths))
    shared = DeliveredTensors(delivered_parts(job.delivery) if job.delivery else {})
    parts = {
        path.relative_to(job.folder).as_posix(): objects.put_parts(
            path, also=shared.cuts(path), progress=count
        )
        for path in paths
    }
    return SendResult(objects.put_bytes(write_parts(parts)))


def receive(job: ReceiveJob) -> ReceiveResult:
    """Write the folder, every part checked by its digest, or nothing under that name.

    Raises `StoreFailed`, and `PackageRefused` for a list of files that leads out of the folder.
    """
    objects = Objects(open_store(job.stores.objects))
    parts_by_name = read_parts(objects.read_bytes(job.parts, PARTS_LIMIT_BYTES))
    count = counter(sum(part.size_bytes for parts in parts_by_name.values() for part in parts))
    with staged_folder(job.folder, job.parts) as partial:
        for name, parts in parts_by_name.items():
            _require_inside(name)
            path = partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                objects.fetch_parts(parts, path, None, progress=count)
    return ReceiveResult(job.folder)


def _require_inside(name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise PackageRefused(
            "a folder that another machine sent names a file outside of it",
            expected="relative names", got=repr(name[:80]),
            remedy="Look at who may write to the store",
        )  # fmt: skip
