"""A ledger of years: what it costs to write and read the newest of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.release.layout import ledger_key
from handoff.artifacts.stores.folder import FolderStore
from handoff.artifacts.stores.store import StoredKey
from tests.tasks.registry.registering import SomeRegistry, some_registry

_VERSIONS = 24


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> SomeRegistry:
    registry = some_registry(tmp_path_factory.mktemp("long"))
    for number in range(_VERSIONS):
        registry.release(created=f"2026-01-01T00:00:{number:02}Z")
    return registry


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many entries of ledgers the store has been asked to read, and has listed."""
    counted: Counter[str] = Counter()
    read, keys = FolderStore.read, FolderStore.keys

    def counting_read(self: FolderStore, key: str, limit: int) -> bytes | None:
        counted["read"] += "/ledger/" in key
        return read(self, key, limit)

    def counting_keys(self: FolderStore, prefix: str, after: str = "") -> Iterator[StoredKey]:
        for stored in keys(self, prefix, after):
            counted["listed"] += "/ledger/" in stored.key
            yield stored

    monkeypatch.setattr(FolderStore, "read", counting_read)
    monkeypatch.setattr(FolderStore, "keys", counting_keys)
    return counted


def test_a_release_reads_and_lists_the_end_of_the_ledger_alone(
    long: SomeRegistry, asked: Counter[str]
) -> None:
    version = long.release(created="2026-01-02T00:00:00Z")
    assert version > _VERSIONS
    # Seven and five, of however many.
    assert asked["read"] <= 10
    assert asked["listed"] <= 10


def test_a_machine_that_sees_the_ledger_for_the_first_time_lists_it_once(
    long: SomeRegistry, asked: Counter[str]
) -> None:
    assert long.stores.seen is not None
    long.stores.seen.unlink()
    newest = long.releases.require_head("toy").entry.sequence
    assert asked["listed"] == newest
    assert long.releases.require_head("toy").entry.sequence == newest
    assert asked["listed"] == newest + 1


def test_the_ledger_is_read_backwards_as_far_as_is_asked_for(
    long: SomeRegistry, asked: Counter[str]
) -> None:
    newest = long.releases.require_head("toy").entry.sequence
    asked.clear()
    entries = long.releases.entries_newest_first("toy")
    assert next(entries).sequence == newest
    assert asked["read"] == 1
    assert [entry.sequence for entry in entries] == list(range(newest - 1, 0, -1))


def test_an_entry_that_went_missing_at_the_end_is_noticed(long: SomeRegistry) -> None:
    newest = long.releases.require_head("toy").entry.sequence
    path = Path(long.stores.objects) / ledger_key("toy", newest)
    kept = path.read_bytes()
    path.unlink()
    with pytest.raises(PackageRefused, match="went back"):
        long.releases.require_head("toy")
    path.write_bytes(kept)
