"""Which store a location names."""

from __future__ import annotations

from pathlib import Path

from handoff.artifacts.stores.store import Store


def open_store(location: str, *, patience_s: float = 60.0) -> Store:
    """Return the store at `location`: a folder, or `s3://bucket/prefix`.

    `patience_s` is for how many seconds an operation on S3 is tried again when what is wrong may
    pass. Nothing is sent yet.
    """
    if location.startswith("s3://"):
        from handoff.artifacts.stores.s3 import S3Store

        bucket, _, prefix = location.removeprefix("s3://").partition("/")
        return S3Store(bucket, prefix.strip("/"), patience_s=patience_s)
    from handoff.artifacts.stores.folder import FolderStore

    return FolderStore(Path(location))
