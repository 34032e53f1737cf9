"""The object store: write-once objects under their own digest, in a folder or in S3.

Both keep an object at `objects/sha256/<hex>`. An object is never overwritten, and what is fetched
is checked against its digest before it appears under its name: a store need not be trusted.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from artifacts.digest import Digest, digest_bytes, digest_file
from artifacts.errors import StoreFailed


class ObjectStore(Protocol):
    """What both stores do; every method raises `StoreFailed` when it can't."""

    def put_file(self, path: Path) -> Digest:
        """Keep the file's bytes and return their digest; nothing is sent for a known object."""

    def put_bytes(self, data: bytes) -> Digest:
        """Keep `data` and return its digest."""

    def has(self, digest: Digest) -> bool:
        """Tell whether the object is there."""

    def fetch(self, digest: Digest, to: Path) -> None:
        """Write the object to `to`, whole and checked, or not at all."""

    def read_bytes(self, digest: Digest, limit: int) -> bytes:
        """Return an object of at most `limit` bytes, checked."""

    def check(self) -> None:
        """Reach the store without changing it."""


def open_store(location: str) -> ObjectStore:
    """Return the store at `location`: a folder, or `s3://bucket/prefix`."""
    if location.startswith("s3://"):
        from artifacts.s3_store import S3Store

        bucket, _, prefix = location.removeprefix("s3://").partition("/")
        return S3Store(bucket, prefix.strip("/"))
    return FolderStore(Path(location))


def object_key(digest: Digest) -> str:
    """Return where an object lies below the store's root."""
    return f"objects/sha256/{digest.hex}"


class FolderStore:
    """Objects as read-only files below a folder."""

    def __init__(self, root: Path) -> None:
        """Use `root`, which is made when the first object is put."""
        self.root = root

    def put_file(self, path: Path) -> Digest:
        """Keep the file's bytes and return their digest."""
        digest = digest_file(path)
        with self._writing(digest) as partial:
            if partial is not None:
                shutil.copyfile(path, partial)
                self._require(digest_file(partial), digest)
        return digest

    def put_bytes(self, data: bytes) -> Digest:
        """Keep `data` and return its digest."""
        digest = digest_bytes(data)
        with self._writing(digest) as partial:
            if partial is not None:
                partial.write_bytes(data)
        return digest

    def has(self, digest: Digest) -> bool:
        """Tell whether the object is there."""
        return self._path(digest).is_file()

    def fetch(self, digest: Digest, to: Path) -> None:
        """Write the object to `to`, whole and checked, or not at all."""
        with appearing_file(to) as partial:
            try:
                shutil.copyfile(self._path(digest), partial)
            except FileNotFoundError as error:
                raise missing_object(digest, str(self.root)) from error
            self._require(digest_file(partial), digest)

    def read_bytes(self, digest: Digest, limit: int) -> bytes:
        """Return an object of at most `limit` bytes, checked."""
        try:
            with self._path(digest).open("rb") as stream:
                data = stream.read(limit + 1)
        except FileNotFoundError as error:
            raise missing_object(digest, str(self.root)) from error
        self._require(digest_bytes(data), digest)
        return data

    def check(self) -> None:
        """Reach the store: a folder that can be made is good enough."""

    def _path(self, digest: Digest) -> Path:
        return self.root / object_key(digest)

    @contextmanager
    def _writing(self, digest: Digest) -> Iterator[Path | None]:
        """Give a file to write the object to, or None where it is there and whole already."""
        path = self._path(digest)
        if path.is_file() and digest_file(path) == digest:
            yield None
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with appearing_file(path) as partial:
                yield partial
                partial.chmod(0o444)
        except OSError as error:
            raise StoreFailed(
                f"the store {self.root} can't keep an object",
                expected="a writable folder with room for it",
                got=error.strerror or str(error),
                remedy="Make room or mend the permissions, then run the same command again",
            ) from error

    def _require(self, found: Digest, wanted: Digest) -> None:
        if found != wanted:
            raise corrupted_object(wanted, found, str(self.root))


@contextmanager
def appearing_file(path: Path) -> Iterator[Path]:
    """Give a temporary file beside `path`, which becomes `path` when the body ends well."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:20]}.")
    os.close(descriptor)
    partial = Path(name)
    try:
        yield partial
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def missing_object(digest: Digest, location: str) -> StoreFailed:
    """Return the refusal for an object that is not there."""
    return StoreFailed(
        f"an object is not in the store {location}", expected=f"the object {digest.short}",
        got="none", remedy="Is HANDOFF_STORE the store that the release was made with?",
    )  # fmt: skip


def corrupted_object(wanted: Digest, found: Digest, location: str) -> StoreFailed:
    """Return the refusal for an object whose bytes are others."""
    return StoreFailed(
        f"an object in {location} is not what its digest says", expected=wanted.short,
        got=found.short, remedy="Don't use it: remove that object and release again",
    )  # fmt: skip
