"""Objects in S3 that others wrote: listed with their ETags, and read as they were listed."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handoff.artifacts.errors import DeliveryUnreachable, DeliveryUnreadable, StoreFailed
from handoff.artifacts.stores.s3_requests import (
    Requests,
    Result,
    TransferCorrupted,
    is_absence,
    is_refused_condition,
    make_client,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_PIECE = 1 << 20
# Checksums of a whole object that boto3 compares itself where the server sends them.
_CHECKSUMS = ("ChecksumSHA256", "ChecksumSHA1", "ChecksumCRC32")


@dataclass(frozen=True)
class S3Object:
    """An object: its path below the place that was listed, its size, and its ETag."""

    name: str
    key: str
    size_bytes: int
    etag: str


class S3Location:
    """One object, or all objects below a prefix; boto3 reads credentials and endpoint itself."""

    def __init__(self, bucket: str, key: str, *, patience_s: float = 60.0) -> None:
        """Look at `key` in `bucket`; a request is tried again for `patience_s`."""
        self.bucket = bucket
        self.key = key
        self.location = f"s3://{bucket}/{key}".rstrip("/")
        self._patience_s = patience_s
        self._requests = Requests(self.location, patience_s)

    @cached_property
    def client(self) -> S3Client:
        """The client, made at the first request."""
        return make_client(self._patience_s)

    def find_object(self) -> S3Object | None:
        """Return the object whose key is the place's own; None where there is none."""
        return self._run("tell of an object", self._head)

    def objects(self, limit: int) -> list[S3Object]:
        """Return what lies below the prefix, at most `limit` and one more, sorted by name."""
        found = self._run("list its objects", partial(self._list_objects, limit))
        return sorted(found, key=lambda one: one.name)

    def folders(self) -> list[str]:
        """Return what follows the prefix in the names of objects, up to the next slash."""
        return self._run("list its folders", self._list_folders)

    def download(self, found: S3Object, path: Path, count: Callable[[int], None]) -> None:
        """Write an object to `path`; `count` is called with numbers of bytes, and may raise.

        Raises `DeliveryUnreadable` for one that has changed since it was listed.
        """
        digest, vouched = self._run("give an object", partial(self._read, found, path, count))
        if not vouched:
            again, _ = self._run("give an object", partial(self._read, found, None, _ignore))
            if again != digest:
                raise DeliveryUnreachable(
                    f"{found.name} in {self.location} can't be read", expected="the same bytes "
                    "each time", got="two readings that differ", remedy="Look at the line to it",
                )  # fmt: skip

    def read(self, found: S3Object, limit: int) -> bytes:
        """Return an object's bytes; raise `DeliveryUnreadable` above `limit` of them."""
        if found.size_bytes > limit:
            raise DeliveryUnreadable(
                f"{found.name} in {self.location} is too large", expected=f"at most {limit} bytes",
                got=str(found.size_bytes), remedy="Deliver the model again",
            )  # fmt: skip
        with tempfile.NamedTemporaryFile(prefix="handoff-") as file:
            self.download(found, Path(file.name), _ignore)
            return file.read()

    def _run(self, what: str, operation: Callable[[], Result]) -> Result:
        try:
            return self._requests.run(what, operation)
        except StoreFailed as error:
            raise DeliveryUnreachable(
                f"{self.location} can't {what}",
                expected="a place that these credentials may list and read", got=error.got,
                remedy="Look at the address, at AWS_ENDPOINT_URL and the credentials of whoever "
                "fetches, and whether the server is up; then try again",
            ) from error  # fmt: skip

    def _head(self) -> S3Object | None:
        try:
            head = self.client.head_object(Bucket=self.bucket, Key=self.key)
        except self.client.exceptions.ClientError as error:
            if not is_absence(error):
                raise
            return None
        name = self.key.rpartition("/")[2]
        return S3Object(name, self.key, head["ContentLength"], head["ETag"])

    @property
    def _root(self) -> str:
        return f"{self.key}/" if self.key else ""

    def _pages(self, **more: str) -> Iterator[Any]:
        paginator = self.client.get_paginator("list_objects_v2")
        options: Any = more
        yield from paginator.paginate(Bucket=self.bucket, Prefix=self._root, **options)

    def _list_objects(self, limit: int) -> list[S3Object]:
        objects: list[S3Object] = []
        for page in self._pages():
            for entry in page.get("Contents", []):
                name = entry["Key"].removeprefix(self._root)
                # What consoles make so that a folder shows.
                if name and not (name.endswith("/") and not entry["Size"]):
                    objects.append(S3Object(name, entry["Key"], entry["Size"], entry["ETag"]))
            if len(objects) > limit:
                break
        return objects[: limit + 1]

    def _list_folders(self) -> list[str]:
        prefixes = [
            one["Prefix"] for page in self._pages(Delimiter="/")
            for one in page.get("CommonPrefixes", [])
        ]  # fmt: skip
        return sorted(prefix.removeprefix(self._root).rstrip("/") for prefix in prefixes)

    def _read(
        self, found: S3Object, path: Path | None, count: Callable[[int], None]
    ) -> tuple[str, bool]:
        """Read an object; return its digest, and whether the server vouches for the bytes."""
        try:
            answer = self.client.get_object(
                Bucket=self.bucket, Key=found.key, IfMatch=found.etag, ChecksumMode="ENABLED"
            )
        except self.client.exceptions.ClientError as error:
            if is_absence(error) or is_refused_condition(error):
                raise changed_while_fetched(f"{self.location}: {found.name}") from None
            raise
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        size = 0
        with closing(answer["Body"]) as body, (path or Path("/dev/null")).open("wb") as stream:
            while piece := body.read(_PIECE):
                size += len(piece)
                sha256.update(piece)
                md5.update(piece)
                stream.write(piece)
                count(len(piece))
        if size != found.size_bytes:
            raise TransferCorrupted(f"{size} of {found.size_bytes} bytes")
        sums = [str(answer.get(name, "-")) for name in _CHECKSUMS]
        vouched = found.etag == f'"{md5.hexdigest()}"' or any("-" not in one for one in sums)
        return sha256.hexdigest(), vouched


def changed_while_fetched(what: str) -> DeliveryUnreadable:
    """Return the refusal for what is being written while it is fetched."""
    return DeliveryUnreadable(
        f"{what} changed while it was fetched", expected="a delivery that is complete",
        got="another one than at the first look", remedy="Wait until it is complete, then try "
        "again; write a new delivery next to the old one, not over it",
    )  # fmt: skip


def _ignore(_: int) -> None:
    return
