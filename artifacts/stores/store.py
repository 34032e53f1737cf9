"""The store: bytes under keys, in a folder or in S3, whichever a location names.

A key is written once (`create`), or holds bytes that follow from the key itself (`upload`, for
objects under their digest), or is a copy of what stands elsewhere (`replace`). Nothing here knows
what the bytes mean; `artifacts.stores.objects` adds the digests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from handoff.artifacts.errors import StoreFailed

# Called with a number of bytes each time that so many more are done; those that have to be sent
# again count again.
Progress = Callable[[int], None]

_NAME = re.compile(r"[A-Za-z0-9_@+=-][A-Za-z0-9._@+=-]*")
_KEY_LIMIT = 900


@dataclass(frozen=True)
class StoredKey:
    """What a store says of a key: its size, and when it was written (with a time zone)."""

    key: str
    size_bytes: int
    modified: datetime


@dataclass(frozen=True)
class Guarantees:
    """What a store's self-test found.

    `conditional_writes`: the second of two writers of a new key is refused. `checksums`: bytes that
    aren't what their checksum says are refused.
    """

    conditional_writes: bool
    checksums: bool

    @property
    def lacking(self) -> tuple[str, ...]:
        """What the store doesn't guarantee, and what is done instead, in sentences."""
        sentences = []
        if not self.conditional_writes:
            sentences.append(
                "The store ignores If-None-Match: of two who write an entry at the same time, one "
                "is told by reading back after a pause, but a writer that stalls longer than the "
                "pause can still replace the other's entry. Let one machine at a time write here"
            )
        if not self.checksums:
            sentences.append(
                "The store doesn't check bytes that it is sent: they are compared afterwards"
            )
        return tuple(sentences)


class Store(Protocol):
    """What both stores do; every method raises `StoreFailed` when it can't.

    Keys are relative paths of plain names, such as `objects/sha256/<hex>`.
    """

    @property
    def location(self) -> str:
        """The store's address, which holds no secret."""

    def create(self, key: str, data: bytes) -> bool:
        """Write a new key; return whether it holds `data` now, or something else stood there."""

    def replace(self, key: str, data: bytes) -> None:
        """Write a key, whatever it held; a reader sees the old bytes or the new ones, whole."""

    def read(self, key: str, limit: int) -> bytes | None:
        """Return the bytes of a key, at most `limit`; None where it isn't there."""

    def upload(
        self, key: str, path: Path, size: int, sha256: str,
        progress: Progress | None = None, *, at: int = 0,
    ) -> None:  # fmt: skip
        """Write `size` bytes of a file, from `at` on, to a key; refuse unless `sha256` is theirs.

        For keys whose bytes follow from the key, since what is there is written again.
        """

    def download(
        self, key: str, to: Path, progress: Progress | None = None, *, at: int = 0
    ) -> None:
        """Write the key's bytes into the file `to` from `at` on, and cut it behind them.

        Bytes behind `at` that `to` holds already count as fetched, so a download that broke off
        goes on; `progress` is called with them, too. The caller checks whether they are right.
        """

    def stat(self, key: str) -> StoredKey | None:
        """Return what the store says of a key; None where it isn't there."""

    def matches(self, key: str, sha256: str) -> bool:
        """Return whether the key's bytes have this digest, as far as the store can say by itself.

        A folder reads them. S3 is asked for the checksum that it keeps; without one they count.
        """

    def keys(self, prefix: str, after: str = "") -> Iterator[StoredKey]:
        """Give every key that begins with `prefix`, in no particular order.

        With `after`, only those that are larger: that many fewer are asked for.
        """

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names below `prefix`, up to the next slash, sorted.

        For `models/` those are the models: names of folders, as a person would say.
        """

    def remove(self, key: str) -> None:
        """Remove a key; one that isn't there is fine."""

    def abandon_uploads(self, older_than: datetime) -> int:
        """Remove what uploads begun before `older_than` left unfinished; return how many."""

    def check(self) -> Guarantees:
        """Write, read and remove a key below `selftest/`; return what the store guarantees."""


def require_key(key: str) -> str:
    """Return `key`; raise `ValueError` unless it is a relative path of plain names.

    No name begins with a dot, so that none is `..` or one of a folder's temporary files.
    """
    if len(key) > _KEY_LIMIT or not all(_NAME.fullmatch(name) for name in key.split("/")):
        raise ValueError(f"expected a key of plain names between slashes, got {key[:80]!r}")
    return key


def missing_key(key: str, location: str) -> StoreFailed:
    """Return the refusal for a key that is not there."""
    return StoreFailed(
        f"{key} is not in the store {location}", expected="that key", got="none",
        remedy="Is HANDOFF_STORE the store that the release was made with?",
    )  # fmt: skip


def oversized_key(key: str, location: str, limit: int) -> StoreFailed:
    """Return the refusal for a key that holds more than it can rightly hold."""
    return StoreFailed(
        f"{key} in the store {location} is too large to be what it should be",
        expected=f"at most {limit} bytes", got="more",
        remedy="Don't use it: find out who wrote it",
    )  # fmt: skip


def changed_file(path: Path) -> StoreFailed:
    """Return the refusal for a file whose bytes aren't those that its digest was taken from."""
    return StoreFailed(
        f"{path.name} changed while it was being kept", expected="the bytes of its digest",
        got="others", remedy="Run the same command again, and find out what writes there",
    )  # fmt: skip


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
