"""Many processes at once: versions, aliases and history come out as if one had followed another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from handoff.artifacts.release.copies import publish
from handoff.artifacts.release.releases import LedgerHead, Releases
from handoff.artifacts.stores.store import StoredKey
from handoff.tasks.registry import draft
from handoff.tasks.registry.append import AppendResult
from handoff.tasks.registry.changes import ReleaseRequest
from handoff.tasks.registry.messages import UploadJob
from tests.studies.outages import races
from tests.studies.outages.children import run_in_child
from tests.studies.outages.registries import Place, append_only, make_place, release_first
from tests.tasks.registry.registering import Here


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A registry with one version, in production."""
    place = make_place(tmp_path_factory.mktemp("races"))
    run_in_child(lambda: release_first(place))
    return place


def test_eight_releases_of_one_delivery_are_one_version(place: Place) -> None:
    outcome = races.release_same(place, rebuild=False)
    assert outcome.is_survived, outcome.describe()


@pytest.mark.long
def test_eight_releases_of_different_deliveries_are_eight_versions_in_mlflow_too(
    place: Place, tmp_path: Path
) -> None:
    place.restore()
    deliveries = races.some_deliveries(place, tmp_path / "deliveries")
    outcome = races.release_others(place, deliveries)
    assert outcome.is_survived, outcome.describe()


def test_of_four_promotions_over_one_version_one_wins_and_three_are_told(place: Place) -> None:
    outcome = races.promote_at_once(place)
    assert outcome.is_survived, outcome.describe()


def test_a_ledger_that_grows_while_it_is_read_has_not_gone_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_place(tmp_path)
    release_first(place, is_shown=False)
    releases = place.registry.releases
    keys = releases.store.keys

    def list_before_another_releases(prefix: str, after: str = "") -> Iterator[StoredKey]:
        found = list(keys(prefix, after))
        append_only(place)
        return iter(found)

    monkeypatch.setattr(releases.store, "keys", list_before_another_releases)
    assert releases.require_head("toy").entry.sequence == 2
    assert place.registry.releases.require_head("toy").entry.sequence == 3


def test_a_delivery_that_another_releases_meanwhile_is_found_though_no_copy_tells_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make_place(tmp_path)
    release_first(place, is_shown=False)
    registry, manifest = place.registry, place.second.manifest
    job = UploadJob(manifest, place.second.folder, registry.stores, place.second.staged)
    uploaded = Here().run(job)
    request = ReleaseRequest(place.model, manifest.digest, manifest.fingerprint, "candidate")

    def release() -> AppendResult:
        return registry.change(request, manifest=manifest, uploaded=uploaded)

    others = [release]

    def publish_before_another_releases(releases: Releases, model: str) -> LedgerHead | None:
        found = publish(releases, model)
        if others:
            others.pop()()
        return found

    monkeypatch.setattr(draft, "publish", publish_before_another_releases)
    assert release() == AppendResult(None, 2, ("candidate",))
    assert [entry.version for entry in registry.entries()] == [1, 1, 2]
