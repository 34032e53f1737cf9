"""Objects are kept once, under their digest, and come back whole and checked or not at all."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.digest import Digest, digest_bytes, digest_file
from handoff.artifacts.errors import EnvironmentLacking, StoreFailed
from handoff.artifacts.stores.folder import FolderStore
from handoff.artifacts.stores.objects import GRACE, Objects, Part, object_key
from handoff.artifacts.stores.store import Store
from tests.artifacts.stores.store_fixtures import overwrite, put_file, sizes_below


@pytest.fixture
def objects(store: Store) -> Objects:
    """The objects of an empty store."""
    return Objects(store)


class CountedStore(FolderStore):
    """A folder that counts what it is sent."""

    sent = 0

    def upload(self, *args: Any, **kwargs: Any) -> None:
        self.sent += 1
        super().upload(*args, **kwargs)

    def replace(self, key: str, data: bytes) -> None:
        self.sent += 1
        super().replace(key, data)


def test_what_was_put_comes_back(objects: Objects, tmp_path: Path) -> None:
    source = tmp_path / "model.so"
    source.write_bytes(b"code and weights")
    digest = put_file(objects, source)
    assert digest == digest_bytes(b"code and weights")
    objects.fetch(digest, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"code and weights"
    assert objects.read_bytes(digest, limit=100) == b"code and weights"
    assert objects.has(digest)


def test_the_same_bytes_are_kept_once(objects: Objects) -> None:
    assert objects.put_bytes(b"same") == objects.put_bytes(b"same")
    assert [stored.size_bytes for stored in objects.store.keys("objects/")] == [4]


def test_what_is_not_there_is_told_and_leaves_no_file(objects: Objects, tmp_path: Path) -> None:
    absent = digest_bytes(b"absent")
    assert not objects.has(absent)
    with pytest.raises(StoreFailed, match="not in the store"):
        objects.fetch(absent, tmp_path / "back")
    with pytest.raises(StoreFailed, match="not in the store"):
        objects.fetch_parts([Part(absent, 6)], tmp_path / "back", digest_bytes(b"whole"))
    with pytest.raises(StoreFailed, match="not in the store"):
        objects.read_bytes(absent, limit=100)
    assert sizes_below(tmp_path) == {}


def test_a_changed_object_is_noticed_and_not_written(objects: Objects, tmp_path: Path) -> None:
    digest = objects.put_bytes(b"good bytes")
    overwrite(objects.store, object_key(digest), b"evil bytes")
    (tmp_path / "to").mkdir()
    with pytest.raises(StoreFailed, match="not what its digest says"):
        objects.fetch(digest, tmp_path / "to" / "back")
    with pytest.raises(StoreFailed, match="not what its digest says"):
        objects.read_bytes(digest, limit=100)
    assert sizes_below(tmp_path / "to") == {}


def test_an_object_beyond_the_limit_is_not_read_whole(objects: Objects) -> None:
    digest = objects.put_bytes(b"x" * 1000)
    with pytest.raises(StoreFailed, match="too large"):
        objects.read_bytes(digest, limit=10)


def test_racing_writers_of_the_same_object_all_succeed(objects: Objects, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        digests = set(pool.map(lambda _: objects.put_bytes(b"raced"), range(8)))
    assert digests == {digest_bytes(b"raced")}
    objects.fetch(digests.pop(), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"raced"


def test_racing_readers_of_the_same_object_all_get_it(objects: Objects, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    digest = objects.put_bytes(data)
    (tmp_path / "to").mkdir()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: objects.fetch(digest, tmp_path / "to" / f"{n % 2}"), range(16)))
    assert (tmp_path / "to" / "0").read_bytes() == (tmp_path / "to" / "1").read_bytes() == data
    assert set(sizes_below(tmp_path / "to")) == {"0", "1"}


def test_a_file_in_parts_comes_back_whole(objects: Objects, tmp_path: Path) -> None:
    parts = [Part(objects.put_bytes(data), len(data)) for data in (b"head ", b"", b"tail")]
    done: list[int] = []
    whole = digest_bytes(b"head tail")
    objects.fetch_parts(parts, tmp_path / "back", whole, progress=done.append)
    assert (tmp_path / "back").read_bytes() == b"head tail"
    assert sum(done) == 9


def test_parts_that_make_another_file_are_refused(objects: Objects, tmp_path: Path) -> None:
    parts = [Part(objects.put_bytes(data), len(data)) for data in (b"one", b"two")]
    (tmp_path / "to").mkdir()
    with pytest.raises(StoreFailed, match="got parts of another file"):
        objects.fetch_parts(parts, tmp_path / "to" / "back", digest_bytes(b"twoone"))
    assert sizes_below(tmp_path / "to") == {}


@pytest.mark.parametrize("left", [b"", b"he", b"head ta", b"head tail", b"head tail and more"])
@pytest.mark.parametrize("damage", [False, True])
def test_what_was_left_of_a_fetch_is_gone_on_from_or_dropped(
    tmp_path: Path, left: bytes, damage: bool
) -> None:
    objects = Objects(FolderStore(tmp_path / "store"))
    parts = [Part(objects.put_bytes(data), len(data)) for data in (b"head ", b"tail")]
    whole = digest_bytes(b"head tail")
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / f".{whole.hex}.partial").write_bytes(b"X" + left[1:] if damage else left)
    objects.fetch_parts(parts, tmp_path / "to" / "back", whole)
    assert (tmp_path / "to" / "back").read_bytes() == b"head tail"
    assert set(sizes_below(tmp_path / "to")) == {"back"}


def test_a_known_object_is_sent_again_only_when_half_its_grace_is_over(tmp_path: Path) -> None:
    store = CountedStore(tmp_path / "store")
    objects = Objects(store)
    (tmp_path / "source").write_bytes(b"data")

    def put(age_s: float) -> int:
        path = store.root / object_key(digest_bytes(b"data"))
        if path.exists():
            then = datetime.now(UTC).timestamp() - age_s
            os.utime(path, (then, then))
        before = store.sent
        put_file(objects, tmp_path / "source")
        objects.put_bytes(b"data")
        return store.sent - before

    half = GRACE.total_seconds() / 2
    assert [put(0), put(0), put(half - 60), put(half + 60)] == [1, 0, 0, 1]
    found = store.stat(object_key(digest_bytes(b"data")))
    assert found is not None
    assert (datetime.now(UTC) - found.modified).total_seconds() < 60


@pytest.mark.parametrize("damaged", [b"bad", b"evil bytes"])
def test_a_folders_object_damaged_before_is_mended_by_putting_it_again(
    tmp_path: Path, damaged: bytes
) -> None:
    objects = Objects(FolderStore(tmp_path))
    digest = objects.put_bytes(b"good bytes")
    overwrite(objects.store, object_key(digest), damaged)
    objects.put_bytes(b"good bytes")
    assert objects.read_bytes(digest, limit=100) == b"good bytes"


def test_a_folder_that_can_not_hold_what_is_fetched_is_told(tmp_path: Path) -> None:
    objects = Objects(FolderStore(tmp_path / "store"))
    digest: Digest = objects.put_bytes(b"data")
    with pytest.raises(EnvironmentLacking, match="expected a writable folder with room"):
        objects.fetch(digest, tmp_path / "nowhere" / "back")


def test_progress_of_a_known_file_is_told_as_if_it_was_sent(
    objects: Objects, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(b"data")
    done: list[int] = []
    put_file(objects, tmp_path / "source", progress=done.append)
    put_file(objects, tmp_path / "source", progress=done.append)
    assert done == [4, 4]
    assert objects.has(digest_file(tmp_path / "source"))
