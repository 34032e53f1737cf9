"""The store in S3, by boto3; what its server guarantees is found out by trying it."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.stores.s3_bucket import Bucket
from handoff.artifacts.stores.s3_requests import Requests, TransferCorrupted, run_ahead, status_of
from handoff.artifacts.stores.s3_transfer import MultipartUpload, checksums_of
from handoff.artifacts.stores.store import (
    Guarantees,
    Progress,
    StoredKey,
    changed_file,
    missing_key,
)

Result = TypeVar("Result")


def find_guarantees(bucket: Bucket, requests: Requests) -> Guarantees:
    """Write, read and remove keys below `selftest/`; return what the server guarantees.

    Raises `StoreFailed` where it can't be reached, or doesn't give back what it was given.
    """
    key = f"selftest/{uuid.uuid4().hex}"

    def run(operation: Callable[[], Result]) -> Result:
        return requests.run("pass its self-test", operation)

    run(lambda: _put_new(bucket, key, b"one"))
    try:
        conditional = not run(lambda: _put_new(bucket, key, b"two"))
        checksums = run(lambda: _verifies_checksums(bucket, f"{key}.damaged"))
        stored = run(lambda: bucket.get(key))
        if stored != (b"one" if conditional else b"two"):
            raise StoreFailed(
                f"the store {bucket.location} can't pass its self-test",
                expected="the bytes that were written",
                got="none" if stored is None else "others",
                remedy="Don't use it: find out what it is, and look at HANDOFF_STORE",
            )
    finally:
        run(lambda: _remove(bucket, key, f"{key}.damaged"))
    return Guarantees(conditional, checksums)


def _put_new(bucket: Bucket, key: str, data: bytes) -> bool:
    """Write a key if it isn't there; return whether it was written, which it always is by some."""
    try:
        return bucket.put(key, data, new=True) is not None
    except bucket.client.exceptions.ClientError as error:
        # Older servers say that they don't know the header, rather than ignoring it.
        if status_of(error) != 501:
            raise
    bucket.put(key, data)
    return True


def _remove(bucket: Bucket, *keys: str) -> None:
    for key in keys:
        bucket.delete(key)


def _verifies_checksums(bucket: Bucket, key: str) -> bool:
    try:
        bucket.put(key, b"damaged", sums=checksums_of(b"what was meant"))
    except bucket.client.exceptions.ClientError as error:
        if status_of(error) != 400:
            raise
        return True
    return False


_MULTIPART_BYTES = 64 << 20
_RANGE_BYTES = 8 << 20


class S3Store:
    """Keys in an S3 bucket; boto3 reads credentials and the endpoint itself."""

    def __init__(
        self, bucket: str, prefix: str, *, patience_s: float = 60.0,
        settling_s: tuple[float, float] = (0.5, 1.5),
    ) -> None:  # fmt: skip
        """Use the keys below `prefix` in `bucket`; nothing is sent yet.

        `patience_s` is for how many seconds a request is tried again when what is wrong may pass.
        `settling_s` bounds the pause, in seconds, of `create` on a server that ignores
        `If-None-Match`.
        """
        self.bucket = Bucket(bucket, prefix, patience_s)
        self.settling_s = settling_s
        self._requests = Requests(self.location, patience_s)

    @property
    def location(self) -> str:
        """The store's address, which holds no secret."""
        return self.bucket.location

    @cached_property
    def guarantees(self) -> Guarantees:
        """What the self-test found, which is made at the first need."""
        return self.check()

    def create(self, key: str, data: bytes) -> bool:
        """Write a new key; return whether it holds `data` now, or something else stood there.

        Exactly one of several writers gets True on a server that knows `If-None-Match`. On one
        that ignores it, each looks, writes, waits and reads back, so that the last one wins; two
        get True when one of them stalls between its look and its write for longer than the
        other's pause, and the other's bytes are lost then.
        """
        if not self.guarantees.conditional_writes:
            return self._create_and_settle(key, data)
        won = False

        def put() -> bool:
            nonlocal won
            vouched = self.bucket.put(key, data, new=not won)
            if vouched is None:
                # An earlier try may have been the one that wrote it, and only its answer was lost.
                return self.bucket.holds(key, data)
            # The condition held, so what arrived damaged is ours to write again.
            won = True
            self._require_arrived(key, data, vouched)
            return True

        try:
            return self._requests.run("keep an entry", put)
        except StoreFailed as error:
            if won and isinstance(error.__context__, TransferCorrupted):
                # It is ours, and nobody can use it: without it, another can be made.
                with suppress(StoreFailed):
                    self.remove(key)
            raise

    def replace(self, key: str, data: bytes) -> None:
        """Write a key, whatever it held; a reader sees the old bytes or the new ones, whole."""

        def put() -> None:
            self._require_arrived(key, data, bool(self.bucket.put(key, data)))

        self._requests.run("keep a key", put)

    def read(self, key: str, limit: int) -> bytes | None:
        """Return the bytes of a key, at most `limit`; None where it isn't there."""
        return self._requests.run("give back a key", partial(self.bucket.get, key, limit))

    def upload(
        self, key: str, path: Path, size: int, sha256: str,
        progress: Progress | None = None, *, at: int = 0,
    ) -> None:  # fmt: skip
        """Write `size` bytes of a file, from `at` on, to a key; refuse unless `sha256` is theirs.

        From 64 MiB on they go in parts. Where the server neither checks what it is sent nor answers
        with its MD5, they are read back and compared.
        """
        if size < _MULTIPART_BYTES:
            with path.open("rb") as stream:
                stream.seek(at)
                data = stream.read(size)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise changed_file(path)
            self.replace(key, data)
            if progress is not None:
                progress(size)
            return
        parts = MultipartUpload(
            self.bucket.client, self._requests, self.bucket.name, self.bucket.full_key(key),
            lambda: self.guarantees.checksums,
        )  # fmt: skip

        def send() -> None:
            vouched = parts.send(path, at, size, sha256, progress)
            stored = self.stat(key)
            is_complete = stored is not None and stored.size_bytes == size
            if not is_complete or not (vouched or self._sha256_of(key, size) == sha256):
                raise TransferCorrupted("other bytes than were sent")

        self._requests.run("keep an object", send)

    def download(
        self, key: str, to: Path, progress: Progress | None = None, *, at: int = 0
    ) -> None:
        """Write the key's bytes into the file `to` from `at` on, and cut it behind them."""
        stored = self.stat(key)
        if stored is None:
            raise missing_key(key, self.location)
        with to.open("r+b" if to.exists() else "w+b") as stream:
            present = min(max(stream.seek(0, os.SEEK_END) - at, 0), stored.size_bytes)
            stream.seek(at + present)
            if progress is not None and present:
                progress(present)
            for data in self._read_ranges(key, present, stored.size_bytes):
                stream.write(data)
                if progress is not None:
                    progress(len(data))
            stream.truncate(at + stored.size_bytes)

    def stat(self, key: str) -> StoredKey | None:
        """Return a key's size and time; None where it isn't there."""
        head = self._requests.run("be asked for a key", partial(self.bucket.head, key))
        return head and StoredKey(key, head["ContentLength"], head["LastModified"])

    def matches(self, key: str, sha256: str) -> bool:
        """Return whether the SHA-256 that the server keeps is this one; without one, True."""
        head = self._requests.run("be asked for a key", partial(self.bucket.head, key))
        if head is None:
            return False
        checksum = head.get("ChecksumSHA256", "")
        # That of an object in parts is one of its parts' checksums: 'BASE64-7'.
        return not checksum or "-" in checksum or base64.b64decode(checksum).hex() == sha256

    def keys(self, prefix: str, after: str = "") -> Iterator[StoredKey]:
        """Give every key that begins with `prefix` and is larger than `after`."""
        more = ""
        while True:
            page = partial(self.bucket.page, prefix, after, more)
            found, more = self._requests.run("list its keys", page)
            yield from found
            if not more:
                return

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names below `prefix`, up to the next slash, sorted."""
        listing = partial(self.bucket.folders, prefix)
        return tuple(sorted(self._requests.run("list its keys", listing)))

    def remove(self, key: str) -> None:
        """Remove a key; one that isn't there is fine."""
        self._requests.run("remove a key", partial(self.bucket.delete, key))

    def abandon_uploads(self, older_than: datetime) -> int:
        """Remove what uploads in parts begun before `older_than` left; return how many."""
        what = "remove an unfinished upload"
        unfinished = partial(self.bucket.unfinished_uploads, older_than)
        return sum(
            self._requests.run(what, partial(self.bucket.abort_upload, key, upload))
            for key, upload in self._requests.run(what, unfinished)
        )

    def check(self) -> Guarantees:
        """Write, read and remove keys below `selftest/`; return what the server guarantees."""
        return find_guarantees(self.bucket, self._requests)

    def _create_and_settle(self, key: str, data: bytes) -> bool:
        vouched = True

        def look_and_put() -> bool:
            nonlocal vouched
            if self.bucket.head(key) is not None:
                return self.bucket.holds(key, data)
            vouched = bool(self.bucket.put(key, data))
            return True

        if not self._requests.run("keep an entry", look_and_put):
            return False
        time.sleep(random.uniform(*self.settling_s))  # noqa: S311
        if self._requests.run("give back an entry", partial(self.bucket.holds, key, data)):
            return True
        if vouched or self.guarantees.checksums:
            return False
        raise StoreFailed(
            f"{key} in the store {self.location} holds other bytes than were sent",
            expected="the bytes that were sent, or another writer's",
            got="either's, or damage",
            remedy="Look at that entry, and remove it if it can't be read; then run the same "
            "command again",
        )

    def _require_arrived(self, key: str, data: bytes, vouched: bool) -> None:
        if not (vouched or self.guarantees.checksums or self.bucket.holds(key, data)):
            raise TransferCorrupted("other bytes than were sent")

    def _read_ranges(self, key: str, start: int, size: int) -> Iterator[bytes]:
        """Give a key's bytes from `start` on, in order; each range is tried again by itself."""

        def fetch(begin: int) -> bytes:
            end = min(begin + _RANGE_BYTES, size)
            get = partial(self.bucket.get_range, key, begin, end)
            return self._requests.run("give back an object", get, key)

        return run_ahead(partial(fetch, begin) for begin in range(start, size, _RANGE_BYTES))

    def _sha256_of(self, key: str, size: int) -> str:
        hasher = hashlib.sha256()
        for data in self._read_ranges(key, 0, size):
            hasher.update(data)
        return hasher.hexdigest()
