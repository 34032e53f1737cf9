"""The object store in S3, by boto3."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artifacts.digest import Digest, digest_bytes, digest_file
from artifacts.errors import StoreFailed
from artifacts.store import appearing_file, corrupted_object, missing_object, object_key

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# Above this size boto3 sends an object in parts. S3's own checksum of a whole object stops there.
_MULTIPART_BYTES = 64 << 20


class S3Store:
    """Objects in an S3 bucket, by boto3, which reads credentials and the endpoint itself."""

    def __init__(self, bucket: str, prefix: str) -> None:
        """Use the keys below `prefix` in `bucket`; nothing is sent yet."""
        self.bucket = bucket
        self.prefix = prefix
        self._made: S3Client | None = None

    @property
    def location(self) -> str:
        """The store's address, which holds no secret."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def put_file(self, path: Path) -> Digest:
        """Keep the file's bytes and return their digest."""
        digest = digest_file(path)
        size = path.stat().st_size
        if self._stored_size(digest) == size:
            return digest
        if size < _MULTIPART_BYTES:
            self._put(digest, path.read_bytes())
            return digest
        from boto3.s3.transfer import TransferConfig

        with self._told("keep an object"):
            # No part of it is seen under its key before the last one has arrived.
            transfer = TransferConfig(multipart_threshold=_MULTIPART_BYTES)
            extra = {"ChecksumAlgorithm": "SHA256"}
            key = self._key(digest)
            self._client.upload_file(str(path), self.bucket, key, ExtraArgs=extra, Config=transfer)
        self._require_size(digest, size)
        return digest

    def put_bytes(self, data: bytes) -> Digest:
        """Keep `data` and return its digest."""
        digest = digest_bytes(data)
        if self._stored_size(digest) != len(data):
            self._put(digest, data)
        return digest

    def has(self, digest: Digest) -> bool:
        """Tell whether the object is there."""
        return self._stored_size(digest) is not None

    def fetch(self, digest: Digest, to: Path) -> None:
        """Write the object to `to`, whole and checked, or not at all."""
        with appearing_file(to) as partial, self._told("give an object", digest):
            self._client.download_file(self.bucket, self._key(digest), str(partial))
            if digest_file(partial) != digest:
                raise corrupted_object(digest, digest_file(partial), self.location)

    def read_bytes(self, digest: Digest, limit: int) -> bytes:
        """Return an object of at most `limit` bytes, checked."""
        with self._told("give an object", digest):
            answer = self._client.get_object(Bucket=self.bucket, Key=self._key(digest))
            data: bytes = answer["Body"].read(limit + 1)
        if digest_bytes(data) != digest:
            raise corrupted_object(digest, digest_bytes(data), self.location)
        return data

    def check(self) -> None:
        """Reach the bucket; raise `StoreFailed` when it can't be."""
        with self._told("be reached"):
            self._client.head_bucket(Bucket=self.bucket)

    @property
    def _client(self) -> S3Client:
        if self._made is None:
            import boto3
            from botocore.config import Config

            # An outage of seconds is waited for; one of minutes is told after about half of one.
            retries: Any = {"mode": "standard", "total_max_attempts": 6}
            self._made = boto3.client(
                "s3", config=Config(retries=retries, connect_timeout=5, read_timeout=30)
            )
        return self._made

    def _key(self, digest: Digest) -> str:
        return "/".join(part for part in (self.prefix, object_key(digest)) if part)

    def _put(self, digest: Digest, data: bytes) -> None:
        checksum = base64.b64encode(bytes.fromhex(digest.hex)).decode()
        with self._told("keep an object"):
            try:
                self._client.put_object(
                    Bucket=self.bucket,
                    Key=self._key(digest),
                    Body=data,
                    ChecksumSHA256=checksum,
                    IfNoneMatch="*",
                )
            except self._client.exceptions.ClientError as error:
                # Somebody else was quicker with the same bytes: that is what was wanted.
                if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") != 412:
                    raise
        self._require_size(digest, len(data))

    def _require_size(self, digest: Digest, size: int) -> None:
        stored = self._stored_size(digest)
        if stored != size:
            raise StoreFailed(
                f"{self.location} didn't keep {digest.short} whole",
                expected=f"{size} bytes", got=f"{stored} bytes",
                remedy="Run the same command again; if it stays, look at the bucket's object",
            )  # fmt: skip

    def _stored_size(self, digest: Digest) -> int | None:
        with self._told("be asked for an object"):
            try:
                answer = self._client.head_object(Bucket=self.bucket, Key=self._key(digest))
            except self._client.exceptions.ClientError as error:
                if error.response.get("Error", {}).get("Code") in ("404", "NoSuchKey", "NotFound"):
                    return None
                raise
        return int(answer["ContentLength"])

    @contextmanager
    def _told(self, what: str, digest: Digest | None = None) -> Iterator[None]:
        """Turn what boto3 raises into a sentence that holds no secret."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", "an error"))
            if digest is not None and code in ("404", "NoSuchKey"):
                raise missing_object(digest, self.location) from None
            raise self._failed(what, code) from None
        except (BotoCoreError, Boto3Error) as error:
            raise self._failed(what, type(error).__name__) from None

    def _failed(self, what: str, got: str) -> StoreFailed:
        return StoreFailed(
            f"the store {self.location} can't {what}",
            expected="a bucket that these credentials may read and write",
            got=got,
            remedy="Look at HANDOFF_STORE, AWS_ENDPOINT_URL and the credentials, and whether the "
            "store is up; then run the same command again",
        )
