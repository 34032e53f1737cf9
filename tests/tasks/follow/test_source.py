"""What an alias stands for is asked of S3 with one request while nothing changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.release.layout import ledger_key
from handoff.artifacts.stores.s3 import S3Store
from handoff.tasks.follow.serving import Alias
from tests.tasks.registry.registering import SomeRegistry, some_registry


@pytest.fixture
def registry(
    tmp_path: Path, s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> SomeRegistry:
    """A registry in S3 with a version in production."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    registry = some_registry(tmp_path, "s3://models/followed")
    registry.promote(registry.release())
    return registry


def record_requests(alias: Alias) -> list[str]:
    """Return a list that names each request to S3 from now on."""
    requests: list[str] = []
    assert isinstance(alias.releases.store, S3Store)
    events: Any = alias.releases.store.bucket.client.meta.events
    events.register("before-send.s3", lambda event_name, **_: requests.append(event_name))
    return requests


@pytest.mark.server
def test_a_look_at_s3_that_finds_nothing_new_is_one_request(
    registry: SomeRegistry,
) -> None:
    alias = Alias(registry.stores, registry.releases.trust, "toy", "production")
    first = alias.look()
    requests = record_requests(alias)
    for _ in range(5):
        assert alias.look() == first
    assert requests == ["before-send.s3.ListObjectsV2"] * 5
    registry.promote(registry.release("2026-11-22T00:00:00+00:00"))
    assert alias.look().version == 2
    registry.roll_back()
    assert alias.look().version == 1
    # A store that hides what was there is found out, and goes on being reported.
    alias.releases.store.remove(ledger_key("toy", registry.entries()[-1].sequence))
    with pytest.raises(PackageRefused, match="toy's ledger went back"):
        alias.look()
    with pytest.raises(PackageRefused, match="toy's ledger went back"):
        alias.look()


def test_a_folder_that_is_away_is_reported(tmp_path: Path) -> None:
    registry = some_registry(tmp_path)
    registry.promote(registry.release())
    stores = replace(registry.stores, seen=tmp_path / "seen" / "own.json")
    alias = Alias(stores, registry.releases.trust, "toy", "production")
    assert alias.look() == alias.look()
    Path(registry.stores.objects).rename(tmp_path / "away")
    with pytest.raises(PackageRefused, match="toy's ledger went back"):
        alias.look()
