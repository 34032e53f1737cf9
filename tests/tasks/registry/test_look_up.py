"""A release is found again by what it was made from; else the served version's speed is noted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.errors import StoreUnreachable, UsageProblem
from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.registry import look_up
from handoff.tasks.registry.messages import LookUpJob, LookUpResult
from tests.tasks.registry.registering import SomeRegistry, some_registry

OTHER = digest_bytes(b"made from something else")


def find(registry: SomeRegistry, fingerprint: Digest, alias: str = "candidate") -> LookUpResult:
    return look_up.run(
        LookUpJob("toy", fingerprint, registry.stores, alias, OTHER, Recipe(), "g++")
    )


def test_an_alias_like_another_is_asked_about_before_anything_is_compiled(tmp_path: Path) -> None:
    registry = some_registry(tmp_path)
    for _ in range(2):
        with pytest.raises(UsageProblem, match=r"you mean production\? Else release it, and"):
            find(registry, OTHER, "prod")
        registry.release("2026-11-20")
    for alias in ("trial", "production-eu", "candidate"):
        assert find(registry, OTHER, alias) == LookUpResult(None)


def test_nothing_is_released_into_a_store_that_has_lost_all_its_ledgers(tmp_path: Path) -> None:
    registry = some_registry(tmp_path)
    registry.release()
    stores = replace(registry.stores, seen=tmp_path / "seen.json")

    def first(model: str) -> LookUpResult:
        return look_up.run(LookUpJob(model, OTHER, stores, "candidate", OTHER, Recipe(), "g++"))

    assert first("toy").version is None
    store = Path(stores.objects)
    store.rename(tmp_path / "unmounted")
    store.mkdir()
    for model in ("toy", "another"):
        with pytest.raises(StoreUnreachable, match=r"lacks ledgers .* got no ledger at all"):
            first(model)
    assert list(store.iterdir()) == []
    store.rmdir()
    (tmp_path / "unmounted").rename(store)
    assert first("another").version is None


def test_what_was_made_from_the_same_is_found(tmp_path: Path) -> None:
    registry = some_registry(tmp_path)
    manifest, folder = registry.write()
    registry.register(manifest, folder)
    assert find(registry, manifest.fingerprint) == LookUpResult(1, manifest.digest)


def test_what_is_new_gets_the_timings_of_the_version_in_production(tmp_path: Path) -> None:
    registry = some_registry(tmp_path)
    assert find(registry, OTHER) == LookUpResult(None)
    registry.release("2026-11-20")
    registry.release("2026-11-21")
    assert find(registry, OTHER) == LookUpResult(None), "none is in production"
    registry.promote(1)
    (target,) = registry.write()[0].targets
    found = find(registry, OTHER)
    assert found.version is None
    assert found.served is not None
    assert found.served.version == 1
    assert "the delivery" in found.served.changed
    assert [(one.target, one.case, one.speedup) for one in found.served.timings] == [
        (target.slug, timing.case, timing.speedup) for timing in target.timings
    ]


def test_a_served_version_whose_record_is_damaged_hinders_no_new_one(tmp_path: Path) -> None:
    registry = some_registry(tmp_path)
    manifest, folder = registry.write()
    registry.register(manifest, folder)
    registry.promote(1)
    for stored in Path(registry.stores.objects).rglob(f"*{manifest.digest.hex}*"):
        stored.write_bytes(b"damaged")
    assert find(registry, OTHER) == LookUpResult(None)
