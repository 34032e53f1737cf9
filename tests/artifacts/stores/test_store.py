"""Both stores keep the same promises: written once, whole or not at all, nothing left behind."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.files.writing import UnfinishedFiles
from handoff.artifacts.stores.folder import FolderStore
from handoff.artifacts.stores.s3 import S3Store
from handoff.artifacts.stores.store import Guarantees, Store, open_store
from tests.artifacts.stores.store_fixtures import overwrite, sizes_below


def file_of(folder: Path, data: bytes) -> tuple[Path, int, str]:
    """Write a file and return what `upload` takes of it."""
    path = folder / "source"
    path.write_bytes(data)
    return path, len(data), hashlib.sha256(data).hexdigest()


def test_a_created_key_is_read_back_and_never_replaced(store: Store) -> None:
    assert store.create("models/toy/ledger/00000001.json", b"first")
    assert not store.create("models/toy/ledger/00000001.json", b"second")
    assert store.create("models/toy/ledger/00000001.json", b"first")
    assert store.read("models/toy/ledger/00000001.json", limit=5) == b"first"


def test_of_eight_racers_exactly_one_creates_a_key(store: Store) -> None:
    store.check()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: store.create("raced", b"racer %d" % n), range(8)))
    assert sum(answers) == 1
    assert store.read("raced", limit=100) == b"racer %d" % answers.index(True)


def test_a_replaced_key_holds_the_last_bytes(store: Store) -> None:
    store.replace("alias.json", b"first, longer")
    store.replace("alias.json", b"second")
    assert store.read("alias.json", limit=100) == b"second"


def test_what_is_not_there_is_none_and_is_removed_in_peace(store: Store, tmp_path: Path) -> None:
    assert store.read("absent", limit=1) is None
    assert store.stat("absent") is None
    assert not store.matches("absent", "0" * 64)
    assert list(store.keys("")) == []
    store.remove("absent")
    with pytest.raises(StoreFailed, match="absent is not in the store"):
        store.download("absent", tmp_path / "back")


def test_what_keys_lie_below_is_no_key_itself(store: Store) -> None:
    store.create("models/toy/1", b"data")
    assert store.stat("models/toy") is None
    assert store.read("models/toy", limit=10) is None
    assert [stored.key for stored in store.keys("models/t")] == ["models/toy/1"]
    assert list(store.keys("models/toy/1/")) == []


def test_bytes_beyond_the_limit_are_refused(store: Store) -> None:
    store.create("large", b"x" * 11)
    assert store.read("large", limit=11) == b"x" * 11
    with pytest.raises(StoreFailed, match="expected at most 10 bytes"):
        store.read("large", limit=10)


@pytest.mark.parametrize("size", [0, 1, 1000, 20 << 20])
def test_a_file_goes_up_and_comes_down(store: Store, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    up: list[int] = []
    down: list[int] = []
    path, _, sha256 = file_of(tmp_path, data)
    store.upload("file", path, size, sha256, up.append)
    store.download("file", tmp_path / "back", down.append)
    assert (tmp_path / "back").read_bytes() == data
    assert (sum(up), sum(down)) == (size, size)
    assert store.matches("file", sha256)


def test_a_piece_of_a_file_goes_up_and_comes_down_behind_other_bytes(
    store: Store, tmp_path: Path
) -> None:
    path, _, _ = file_of(tmp_path, b"head, weights, tail")
    store.upload("piece", path, 7, hashlib.sha256(b"weights").hexdigest(), at=6)
    (tmp_path / "back").write_bytes(b"code: ")
    store.download("piece", tmp_path / "back", at=6)
    assert (tmp_path / "back").read_bytes() == b"code: weights"


def test_a_download_goes_on_from_what_is_there_and_cuts_what_is_too_much(
    store: Store, tmp_path: Path
) -> None:
    store.upload("file", *file_of(tmp_path, b"0123456789"))
    done: list[int] = []
    (tmp_path / "back").write_bytes(b"0123")
    store.download("file", tmp_path / "back", done.append)
    assert (tmp_path / "back").read_bytes() == b"0123456789"
    assert done == [4, 6]
    (tmp_path / "back").write_bytes(b"0123456789 and more")
    store.download("file", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"0123456789"


def test_a_file_that_is_not_what_its_digest_says_is_not_kept(store: Store, tmp_path: Path) -> None:
    path, size, _ = file_of(tmp_path, b"changed since")
    with pytest.raises(StoreFailed, match="source changed while it was being kept"):
        store.upload("file", path, size, hashlib.sha256(b"as it was").hexdigest())
    assert list(store.keys("")) == []


def test_keys_are_listed_with_size_and_time(store: Store) -> None:
    before = datetime.now(UTC) - timedelta(minutes=1)
    for key in ("models/toy/1", "models/toy/2", "models/tools/1", "objects/1"):
        store.create(key, key.encode())
    assert {found.key for found in store.keys("")} >= {"objects/1", "models/tools/1"}
    found = sorted(store.keys("models/toy/"), key=lambda stored: stored.key)
    assert [(one.key, one.size_bytes) for one in found] == [
        ("models/toy/1", 12),
        ("models/toy/2", 12),
    ]
    assert all(before < one.modified < datetime.now(UTC) + timedelta(minutes=1) for one in found)
    assert store.stat("models/toy/1") is not None
    store.remove("models/toy/1")
    assert [one.key for one in store.keys("models/toy/")] == ["models/toy/2"]
    assert [one.key for one in store.keys("models/", "models/tools/1")] == ["models/toy/2"]
    assert list(store.keys("models/", "models/toy/2")) == []


def test_more_keys_than_a_page_holds_are_all_listed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    number_of_keys = 1003
    if isinstance(store, S3Store):
        # A page of S3's holds a thousand: smaller ones, so that fewer have to be written.
        client, number_of_keys = store.bucket.client, 23
        plain = partial(client.list_objects_v2, MaxKeys=10)
        monkeypatch.setattr(client, "list_objects_v2", plain)
    wanted = {f"many/{number:04}" for number in range(number_of_keys)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.replace(key, b""), wanted))
    found = [stored.key for stored in store.keys("many/")]
    assert len(found) == number_of_keys
    assert set(found) == wanted
    assert {one.key for one in store.keys("many/", "many/0000")} == wanted - {"many/0000"}


@pytest.mark.parametrize("key", ["", "/etc/passwd", "a//b", "../up", "a/../b", "a/.b", "a b", "ä"])
def test_a_key_that_is_no_plain_path_is_refused(store: Store, key: str) -> None:
    with pytest.raises(ValueError, match="expected a key of plain names"):
        store.create(key, b"data")
    with pytest.raises(ValueError, match="expected a key of plain names"):
        store.read(key, 1)


def test_a_stores_self_test_leaves_nothing_behind(store: Store, tmp_path: Path) -> None:
    guarantees = store.check()
    assert guarantees.conditional_writes
    assert not [sentence for sentence in guarantees.lacking if "If-None-Match" in sentence]
    assert list(store.keys("")) == []
    assert sizes_below(tmp_path) == {}


def test_what_a_store_does_not_guarantee_is_said() -> None:
    first, second = Guarantees(conditional_writes=False, checksums=False).lacking
    assert "ignores If-None-Match" in first
    assert "doesn't check bytes that it is sent" in second


def test_a_changed_file_of_a_folder_does_not_match(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.create("key", b"good")
    overwrite(store, "key", b"evil")
    assert not store.matches("key", hashlib.sha256(b"good").hexdigest())


def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = open_store(str(tmp_path / "file" / "store"))
    with pytest.raises(StoreFailed, match="writable folder"):
        store.create("key", b"data")
    with pytest.raises(StoreFailed, match="writable folder"):
        store.check()


def test_temporary_files_whose_writer_is_gone_are_removed_and_others_stay(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.create("objects/kept", b"data")
    for name in ("stale", "fresh"):
        (tmp_path / ".unfinished" / name).write_bytes(b"half")
    os.utime(tmp_path / ".unfinished" / "stale", (1, 1))
    assert [stored.key for stored in store.keys("")] == ["objects/kept"]
    assert store.abandon_uploads(datetime.now(UTC) - timedelta(hours=1)) == 1
    assert set(sizes_below(tmp_path)) == {"objects/kept", ".unfinished/fresh"}


def test_what_a_killed_writer_left_the_next_one_removes_and_what_a_living_one_holds_stays(
    tmp_path: Path,
) -> None:
    unfinished = tmp_path / ".unfinished"
    with UnfinishedFiles(unfinished).open() as (held, stream):
        stream.write(b"half")
        (unfinished / "left").write_bytes(b"half")
        FolderStore(tmp_path).create("objects/kept", b"data")
        assert list(unfinished.iterdir()) == [held]
    assert set(sizes_below(tmp_path)) == {"objects/kept"}


@pytest.mark.server
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_unfinished_uploads_below_the_prefix_are_aborted(store: Store) -> None:
    assert isinstance(store, S3Store)
    client, bucket = store.bucket.client, store.bucket
    for key in (bucket.full_key("half"), "elsewhere/half"):
        client.create_multipart_upload(Bucket=bucket.name, Key=key)
    # Moto gives every upload the same time, years ago.
    assert store.abandon_uploads(datetime(2000, 1, 1, tzinfo=UTC)) == 0
    assert store.abandon_uploads(datetime.now(UTC) + timedelta(minutes=1)) == 1
    left = client.list_multipart_uploads(Bucket=bucket.name).get("Uploads", [])
    assert [upload["Key"] for upload in left] == ["elsewhere/half"]
    client.abort_multipart_upload(
        Bucket=bucket.name, Key="elsewhere/half", UploadId=left[0]["UploadId"]
    )


@pytest.mark.server
def test_a_bucket_that_is_not_there_is_told(
    s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    store = open_store("s3://no-such-bucket/x")
    with pytest.raises(StoreFailed, match=r"s3://no-such-bucket/x can't.*got NoSuchBucket"):
        store.replace("key", b"data")
    with pytest.raises(StoreFailed, match=r"s3://no-such-bucket/x can't.*got NoSuchBucket"):
        store.stat("key")


def test_an_endpoint_that_is_down_is_told_without_a_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    with pytest.raises(StoreFailed, match="EndpointConnectionError, again and again") as caught:
        open_store("s3://models/x", patience_s=1).check()
    assert "the-key" not in str(caught.value)
    assert "the-secret" not in str(caught.value)


def test_missing_credentials_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreFailed, match="got NoCredentialsError"):
        open_store("s3://models/x").check()
