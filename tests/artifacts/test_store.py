"""Both stores keep the same promises: write-once, checked on the way back, all or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from artifacts.digest import digest_bytes
from artifacts.errors import StoreFailed
from artifacts.s3_store import S3Store
from artifacts.store import FolderStore, ObjectStore, object_key, open_store


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.server)])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ObjectStore]:
    """A folder, or a bucket of a real S3 endpoint over HTTP."""
    if request.param == "s3":
        settings: dict[str, str] = request.getfixturevalue("s3_environment")
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        yield open_store("s3://models/some/prefix")
    else:
        yield open_store(str(tmp_path / "store"))


def overwrite(store: ObjectStore, data: bytes, other: bytes) -> None:
    """Change a stored object behind the store's back."""
    digest = digest_bytes(data)
    if isinstance(store, S3Store):
        store._client.put_object(Bucket=store.bucket, Key=store._key(digest), Body=other)
    else:
        assert isinstance(store, FolderStore)
        path = store.root / object_key(digest)
        path.chmod(0o644)
        path.write_bytes(other)


def test_what_was_put_comes_back(store: ObjectStore, tmp_path: Path) -> None:
    source = tmp_path / "model.so"
    source.write_bytes(b"code and weights")
    digest = store.put_file(source)
    assert digest == digest_bytes(b"code and weights")
    store.fetch(digest, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"code and weights"
    assert store.read_bytes(digest, limit=100) == b"code and weights"
    assert store.has(digest)


def test_the_same_bytes_are_kept_once(store: ObjectStore) -> None:
    assert store.put_bytes(b"same") == store.put_bytes(b"same")


def test_what_is_not_there_is_told_and_leaves_no_file(store: ObjectStore, tmp_path: Path) -> None:
    absent = digest_bytes(b"absent")
    assert not store.has(absent)
    with pytest.raises(StoreFailed, match="not in the store"):
        store.fetch(absent, tmp_path / "back")
    with pytest.raises(StoreFailed, match="not in the store"):
        store.read_bytes(absent, limit=100)
    assert [path.name for path in tmp_path.iterdir() if "back" in path.name] == []


def test_a_changed_object_is_noticed_and_not_written(store: ObjectStore, tmp_path: Path) -> None:
    digest = store.put_bytes(b"good bytes")
    overwrite(store, b"good bytes", b"evil bytes")
    with pytest.raises(StoreFailed, match="not what its digest says"):
        store.fetch(digest, tmp_path / "back")
    with pytest.raises(StoreFailed, match="not what its digest says"):
        store.read_bytes(digest, limit=100)
    assert [path.name for path in tmp_path.iterdir() if "back" in path.name] == []


def test_an_object_beyond_the_limit_is_not_read_whole(store: ObjectStore) -> None:
    digest = store.put_bytes(b"x" * 1000)
    with pytest.raises(StoreFailed, match="not what its digest says"):
        store.read_bytes(digest, limit=10)


def test_racing_writers_of_the_same_object_all_succeed(store: ObjectStore, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        digests = set(pool.map(lambda _: store.put_bytes(b"raced"), range(8)))
    assert digests == {digest_bytes(b"raced")}
    store.fetch(digests.pop(), tmp_path / "back")


def test_a_store_that_can_be_reached_passes_its_check(store: ObjectStore) -> None:
    store.check()


def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreFailed, match="writable folder"):
        open_store(str(tmp_path / "file" / "store")).put_bytes(b"data")


def test_a_folders_object_damaged_before_is_mended_by_putting_it_again(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    digest = store.put_bytes(b"good bytes")
    overwrite(store, b"good bytes", b"bad")
    store.put_bytes(b"good bytes")
    assert store.read_bytes(digest, limit=100) == b"good bytes"


@pytest.mark.server
def test_a_bucket_that_is_not_there_is_told(
    s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreFailed, match="s3://no-such-bucket/x can't"):
        open_store("s3://no-such-bucket/x").put_bytes(b"data")


def test_an_endpoint_that_is_down_is_told_without_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(StoreFailed, match="EndpointConnectionError") as caught:
        open_store("s3://models/x").check()
    assert "the-key" not in str(caught.value)
    assert "the-secret" not in str(caught.value)
