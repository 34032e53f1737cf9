"""Both stores, for tests: a folder of its own, or keys of its own on a real S3 server."""

from __future__ import annotations

import uuid
from pathlib import Path

from handoff.artifacts.digest import Digest
from handoff.artifacts.stores.folder import FolderStore
from handoff.artifacts.stores.objects import Objects
from handoff.artifacts.stores.s3 import S3Store
from handoff.artifacts.stores.store import Progress, Store


def s3_store(*, patience_s: float = 60.0, prefix: str = "") -> S3Store:
    """Return a store below a prefix that nobody else uses."""
    return S3Store(
        "models", prefix or f"tests/{uuid.uuid4().hex}", patience_s=patience_s,
        settling_s=(2.0, 3.0),
    )  # fmt: skip


def put_file(objects: Objects, path: Path, progress: Progress | None = None) -> Digest:
    """Keep a file that isn't cut, and return its digest."""
    (part,) = objects.put_parts(path, progress=progress)
    return part.digest


def overwrite(store: Store, key: str, data: bytes) -> None:
    """Change a stored key behind the store's back."""
    if isinstance(store, S3Store):
        client, bucket = store.bucket.client, store.bucket
        client.put_object(Bucket=bucket.name, Key=bucket.full_key(key), Body=data)
    else:
        assert isinstance(store, FolderStore)
        path = store.root / key
        path.chmod(0o644)
        path.write_bytes(data)


def sizes_below(folder: Path) -> dict[str, int]:
    """Return every file below a folder with its size, hidden ones too."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }
