"""A large file on its way into S3: in parts, several at a time, each with its own checksums."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from handoff.artifacts.stores.s3_requests import Requests, code_of, run_ahead
from handoff.artifacts.stores.store import Progress, changed_file

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

# S3 takes at most 10 000 parts of at least 5 MiB. Four of these are in memory at once.
_PART_BYTES = 16 << 20
_MOST_PARTS = 10_000


@dataclass(frozen=True)
class Checksums:
    """What a request's body is checked by, as S3 writes them.

    The MD5 is for servers that know no SHA-256, and because most give it back as the `ETag`: it
    guards against damage, not against a forger.
    """

    md5: str
    sha256: str

    @property
    def etag(self) -> str:
        """The `ETag` of an answer from a server that holds these bytes and doesn't encrypt them."""
        return f'"{base64.b64decode(self.md5).hex()}"'


def checksums_of(data: bytes) -> Checksums:
    """Return the checksums of a body."""
    md5 = hashlib.md5(data, usedforsecurity=False).digest()
    sha256 = hashlib.sha256(data).digest()
    return Checksums(base64.b64encode(md5).decode(), base64.b64encode(sha256).decode())


@dataclass(frozen=True)
class MultipartUpload:
    """Sends a file's bytes to one key, which holds nothing of them before the last part is there.

    `checks_sums` is asked when a server's `ETag` says nothing about the bytes.
    """

    client: S3Client
    requests: Requests
    bucket: str
    key: str
    checks_sums: Callable[[], bool]

    def send(self, path: Path, at: int, size: int, sha256: str, progress: Progress | None) -> bool:
        """Send `size` bytes from `at` on; return whether the server vouched for every one.

        A part that fails is sent again by itself. Raises `StoreFailed`, also when the bytes don't
        have the digest `sha256`; nothing is left behind then.
        """
        upload = self.requests.run("begin an object", self._create_upload)
        try:
            hasher = hashlib.sha256()
            parts: list[CompletedPartTypeDef] = []
            vouched = True
            for part, part_bytes, part_vouched in run_ahead(
                self._part_tasks(upload, path, at, size, hasher.update)
            ):
                parts.append(part)
                vouched = vouched and part_vouched
                if progress is not None:
                    progress(part_bytes)
            if hasher.hexdigest() != sha256:
                raise changed_file(path)
            ended = self.requests.run(
                "end an object", partial(self._complete_upload, upload, parts)
            )
        except BaseException:
            from botocore.exceptions import BotoCoreError, ClientError

            # What stays is found by `abandon_uploads`; the first error is the one to raise.
            with suppress(BotoCoreError, ClientError):
                self.client.abort_multipart_upload(
                    Bucket=self.bucket, Key=self.key, UploadId=upload
                )
            raise
        return vouched and ended

    def _part_tasks(
        self, upload: str, path: Path, at: int, size: int, update_hash: Callable[[bytes], None]
    ) -> Iterator[Callable[[], tuple[CompletedPartTypeDef, int, bool]]]:
        part_bytes = max(_PART_BYTES, -(-size // _MOST_PARTS))
        with path.open("rb") as stream:
            stream.seek(at)
            for number in range(1, -(-size // part_bytes) + 1):
                data = stream.read(min(part_bytes, size - (number - 1) * part_bytes))
                update_hash(data)
                send = partial(self._send_part, upload, number, data)
                yield partial(self.requests.run, "keep a part of an object", send)

    def _send_part(
        self, upload: str, number: int, data: bytes
    ) -> tuple[CompletedPartTypeDef, int, bool]:
        sums = checksums_of(data)
        answer = self.client.upload_part(
            Bucket=self.bucket, Key=self.key, UploadId=upload, PartNumber=number, Body=data,
            ContentMD5=sums.md5, ChecksumSHA256=sums.sha256,
        )  # fmt: skip
        etag = answer["ETag"]
        part: CompletedPartTypeDef = {
            "PartNumber": number, "ETag": etag, "ChecksumSHA256": sums.sha256,
        }  # fmt: skip
        return part, len(data), etag == sums.etag or self.checks_sums()

    def _create_upload(self) -> str:
        answer = self.client.create_multipart_upload(
            Bucket=self.bucket, Key=self.key, ChecksumAlgorithm="SHA256"
        )
        return answer["UploadId"]

    def _complete_upload(self, upload: str, parts: list[CompletedPartTypeDef]) -> bool:
        """Put the parts together; False when it isn't known whether that was done before."""
        try:
            self.client.complete_multipart_upload(
                Bucket=self.bucket, Key=self.key, UploadId=upload, MultipartUpload={"Parts": parts}
            )
        except self.client.exceptions.ClientError as error:
            # An earlier try may have done it, and only its answer was lost.
            if code_of(error) == "NoSuchUpload":
                return False
            raise
        return True
