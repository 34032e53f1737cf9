"""Objects in a bucket, whole and as they were when they were listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from handoff.artifacts.errors import DeliveryUnreachable
from handoff.tasks.fetch.messages import FetchLimits
from tests.tasks.fetch.samples import ARCHIVES, FILES, assert_fetched, assert_refused


@pytest.fixture
def s3(s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> object:
    import boto3

    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    return boto3.client("s3")


@pytest.mark.server
def test_a_folder_of_objects_and_an_archive_object_are_fetched(s3: object, to: Path) -> None:
    for name, data in FILES.items():
        s3.put_object(Bucket="models", Key=f"in/toy/{name}", Body=data)  # type: ignore[attr-defined]
    s3.put_object(Bucket="models", Key="in/toy/", Body=b"")  # type: ignore[attr-defined]
    s3.put_object(Bucket="models", Key="in/toy-2/other", Body=b"x")  # type: ignore[attr-defined]
    assert_fetched("s3://models/in/toy", to)
    s3.put_object(Bucket="models", Key="in/d.zip", Body=ARCHIVES["zip"])  # type: ignore[attr-defined]
    (to.parent / "second").mkdir()
    assert_fetched("s3://models/in/d.zip", to.parent / "second" / "new")


@pytest.mark.server
def test_what_isnt_in_s3_or_too_much_is_refused(s3: object, to: Path) -> None:
    assert_refused("s3://models/nothing/here", to, "the delivery is empty")
    assert_refused("s3://no-such-bucket/x", to, "NoSuchBucket|404|can't tell", DeliveryUnreachable)
    for name, data in FILES.items():
        s3.put_object(Bucket="models", Key=f"big/{name}", Body=data)  # type: ignore[attr-defined]
    assert_refused("s3://models/big", to, "at most 2 files", limits=FetchLimits(files=2))
    assert_refused("s3://models/big", to, "at most 100 bytes", limits=FetchLimits(size_bytes=100))
    s3.put_object(Bucket="models", Key="bad/../x", Body=b"x")  # type: ignore[attr-defined]
    assert_refused("s3://models/bad", to, "name that is never written|is empty")


@pytest.mark.server
def test_an_object_that_changes_meanwhile_is_refused(
    s3: object, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from handoff.artifacts.stores.s3_reading import S3Location

    s3.put_object(Bucket="models", Key="c/module.py", Body=b"1")  # type: ignore[attr-defined]
    listed = S3Location.objects

    def then_changed(place: S3Location, limit: int) -> object:
        found = listed(place, limit)
        s3.put_object(Bucket="models", Key="c/module.py", Body=b"2")  # type: ignore[attr-defined]
        return found

    monkeypatch.setattr(S3Location, "objects", then_changed)
    assert_refused("s3://models/c", to, "changed while it was fetched")
