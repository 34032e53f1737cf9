"""Receive: fetch a folder that another machine of the stack has sent through the store."""

from __future__ import annotations

from pathlib import PurePosixPath

from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.files.new_folder import becoming
from handoff.artifacts.release.part_list import PARTS_LIMIT_BYTES, read_parts
from handoff.artifacts.stores.objects import Objects
from handoff.artifacts.stores.opening import open_store
from handoff.infra.engine.progress import counter
from handoff.tasks.fetch.messages import Received, ReceiveJob


def run(job: ReceiveJob) -> Received:
    """Write the folder, every part checked by its digest, or nothing under that name.

    Raises `StoreFailed`, and `PackageRefused` for a list of files that leads out of the folder.
    """
    objects = Objects(open_store(job.stores.objects))
    listed = read_parts(objects.read_bytes(job.parts, PARTS_LIMIT_BYTES))
    count = counter(sum(part.size_bytes for parts in listed.values() for part in parts))
    with becoming(job.folder, job.parts) as partial:
        for name, parts in listed.items():
            _require_inside(name)
            path = partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                objects.fetch_parts(parts, path, None, progress=count)
    return Received(job.folder)


def _require_inside(name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise PackageRefused(
            "a folder that another machine sent names a file outside of it",
            expected="relative names", got=repr(name[:80]),
            remedy="Look at who may write to the store",
        )  # fmt: skip
