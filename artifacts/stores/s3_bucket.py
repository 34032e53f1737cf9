"""Single requests to the keys below a prefix of one bucket; none of them is tried again here."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from handoff.artifacts.stores.s3_requests import (
    TransferCorrupted,
    is_absence,
    is_refused_condition,
    make_client,
    status_of,
)
from handoff.artifacts.stores.s3_transfer import Checksums, checksums_of
from handoff.artifacts.stores.store import StoredKey, oversized_key, require_key

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef, HeadObjectOutputTypeDef


class Bucket:
    """A bucket's keys below a prefix, by boto3's client, whose errors come through as they are."""

    def __init__(self, name: str, prefix: str, patience_s: float) -> None:
        """Use the keys below `prefix`; nothing is sent yet."""
        self.name = name
        self.prefix = prefix
        self.patience_s = patience_s

    @property
    def location(self) -> str:
        """The bucket's address, which holds no secret."""
        return f"s3://{self.name}/{self.prefix}".rstrip("/")

    @cached_property
    def client(self) -> S3Client:
        """The client, made at the first request."""
        return make_client(self.patience_s)

    @property
    def root(self) -> str:
        """What every key of this store begins with: nothing, or the prefix and a slash."""
        return f"{self.prefix}/" if self.prefix else ""

    def full_key(self, key: str) -> str:
        """Return a key as the bucket knows it."""
        return self.root + require_key(key)

    def put(
        self, key: str, data: bytes, *, new: bool = False, sums: Checksums | None = None
    ) -> bool | None:
        """Write a key; with `new` only one that isn't there.

        Returns True when the server's ETag shows that it holds these bytes, False when the ETag
        says nothing, and None when `new` was refused.
        """
        expected = checksums_of(data)
        sums = sums or expected
        condition: Any = {"IfNoneMatch": "*"} if new else {}
        try:
            answer = self.client.put_object(
                Bucket=self.name, Key=self.full_key(key), Body=data,
                ContentMD5=sums.md5, ChecksumSHA256=sums.sha256, **condition,
            )  # fmt: skip
        except self.client.exceptions.ClientError as error:
            if is_refused_condition(error):
                return None
            raise
        return answer.get("ETag") == expected.etag

    def get(self, key: str, limit: int | None = None) -> bytes | None:
        """Return the bytes of a key; None where it isn't there.

        Raises `StoreFailed` above `limit` bytes, and `TransferCorrupted` for bytes that neither the
        server's checksum, nor its ETag, nor a second look agrees with.
        """
        answer = self._open(key)
        if answer is None:
            return None
        size = answer["ContentLength"]
        if limit is not None and size > limit:
            answer["Body"].close()
            raise oversized_key(key, self.location, limit)
        data = _read_body(answer, size)
        # With a checksum, boto3 has compared it by now.
        if "ChecksumSHA256" in answer or answer.get("ETag") == checksums_of(data).etag:
            return data
        again = self._open(key)
        if again is None or _read_body(again, again["ContentLength"]) != data:
            raise TransferCorrupted("two readings that differ")
        return data

    def holds(self, key: str, data: bytes) -> bool:
        """Return whether a key's bytes are these; what is larger isn't read."""
        head = self.head(key)
        if head is None or head["ContentLength"] != len(data):
            return False
        return self.get(key, len(data)) == data

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` to before `end`; a missing key raises `NoSuchKey`."""
        answer = self.client.get_object(
            Bucket=self.name, Key=self.full_key(key), Range=f"bytes={start}-{end - 1}"
        )
        return _read_body(answer, end - start)

    def head(self, key: str) -> HeadObjectOutputTypeDef | None:
        """Return what the bucket says of a key; None where it isn't there."""
        try:
            return self.client.head_object(
                Bucket=self.name, Key=self.full_key(key), ChecksumMode="ENABLED"
            )
        except self.client.exceptions.ClientError as error:
            if not is_absence(error):
                raise
        # An answer to HEAD doesn't distinguish a missing key from a missing bucket; this one does.
        self.client.list_objects_v2(Bucket=self.name, Prefix=self.full_key(key), MaxKeys=1)
        return None

    def page(self, prefix: str, after: str, more: str) -> tuple[list[StoredKey], str]:
        """Return a page of keys that begin with `prefix` and are larger than `after`.

        `more` is where it begins, and what is returned, too, where the next one does; the first
        page's and the last one's are empty.
        """
        begin: Any = {"StartAfter": self.root + after} if after else {}
        begin |= {"ContinuationToken": more} if more else {}
        answer = self.client.list_objects_v2(Bucket=self.name, Prefix=self.root + prefix, **begin)
        keys = [
            StoredKey(entry["Key"].removeprefix(self.root), entry["Size"], entry["LastModified"])
            for entry in answer.get("Contents", [])
        ]
        return keys, answer["NextContinuationToken"] if answer.get("IsTruncated") else ""

    def folders(self, prefix: str) -> list[str]:
        """Return what follows `prefix` in the keys below it, up to the next slash."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.name, Prefix=self.root + prefix, Delimiter="/"
        )
        names = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
        return [name.removeprefix(self.root + prefix).rstrip("/") for name in names]

    def delete(self, key: str) -> None:
        """Remove a key; one that isn't there is fine."""
        self.client.delete_object(Bucket=self.name, Key=self.full_key(key))

    def unfinished_uploads(self, older_than: datetime) -> list[tuple[str, str]]:
        """Return key and number of each upload in parts that was begun before."""
        paginator = self.client.get_paginator("list_multipart_uploads")
        return [
            (upload["Key"], upload["UploadId"])
            for page in paginator.paginate(Bucket=self.name, Prefix=self.root)
            for upload in page.get("Uploads", [])
            if upload["Initiated"] < older_than
        ]

    def abort_upload(self, full_key: str, upload: str) -> bool:
        """Remove what arrived of an upload; return whether it was still there."""
        try:
            self.client.abort_multipart_upload(Bucket=self.name, Key=full_key, UploadId=upload)
        except self.client.exceptions.ClientError as error:
            if status_of(error) != 404:
                raise
            return False
        return True

    def _open(self, key: str) -> GetObjectOutputTypeDef | None:
        try:
            return self.client.get_object(
                Bucket=self.name, Key=self.full_key(key), ChecksumMode="ENABLED"
            )
        except self.client.exceptions.NoSuchKey:
            return None


def _read_body(answer: GetObjectOutputTypeDef, size: int) -> bytes:
    """Return a body of exactly `size` bytes."""
    with closing(answer["Body"]) as body:
        data: bytes = body.read(size + 1)
        # What was compared is compared at the end of the body only.
        rest = body.read()
    if len(data) != size or rest:
        raise TransferCorrupted(f"{len(data)} of {size} bytes")
    return data
