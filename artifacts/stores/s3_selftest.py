"""What an S3 server guarantees, found out by trying it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeVar

from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.stores.s3_bucket import Bucket
from handoff.artifacts.stores.s3_requests import Requests, status_of
from handoff.artifacts.stores.s3_transfer import sums_of
from handoff.artifacts.stores.store import Guarantees

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
        checksums = run(lambda: _refuses_damaged(bucket, f"{key}.damaged"))
        found = run(lambda: bucket.get(key))
        if found != (b"one" if conditional else b"two"):
            raise StoreFailed(
                f"the store {bucket.location} can't pass its self-test",
                expected="the bytes that were written",
                got="none" if found is None else "others",
                remedy="Don't use it: find out what it is, and look at HANDOFF_STORE",
            )
    finally:
        run(lambda: _remove(bucket, key, f"{key}.damaged"))
    return Guarantees(conditional, checksums)


def _put_new(bucket: Bucket, key: str, data: bytes) -> bool:
    """Write a key if it isn't there; tell whether it was written, which it always is by some."""
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


def _refuses_damaged(bucket: Bucket, key: str) -> bool:
    try:
        bucket.put(key, b"damaged", sums=sums_of(b"what was meant"))
    except bucket.client.exceptions.ClientError as error:
        if status_of(error) != 400:
            raise
        return True
    return False
