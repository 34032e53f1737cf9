"""The survey: what is served is rebuilt when what it was made from has changed, and only then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.night import Night, NightRow, write_night
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.stores.store import open_store
from handoff.tasks.compile.fingerprint import fingerprint_release
from handoff.tasks.nightly import survey
from handoff.tasks.nightly.messages import ModelSurvey, SurveyJob
from tests.tasks.registry.registering import SomeRegistry, some_registry

COMPILER = "g++"


@pytest.fixture
def registry(tmp_path: Path) -> SomeRegistry:
    return some_registry(tmp_path)


@pytest.fixture
def delivery(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir()
    (folder / "module.py").write_text("import torch\n")
    return folder


def serve(registry: SomeRegistry, delivery: Path, *, today: bool, kept: bool = True) -> Manifest:
    """Release and promote a version that was made by today's toolchain, or by another one."""
    manifest, folder = registry.write_from(delivery)
    if today:
        made = fingerprint_release(manifest.delivery, manifest.recipe, COMPILER)
        manifest = replace(manifest, fingerprint=made)
        (folder / "manifest.json").write_bytes(manifest.to_bytes())
    registry.register(manifest, folder, delivery=delivery if kept else None)
    registry.promote(1)
    return manifest


def look(registry: SomeRegistry, recipes: Path, *models: str) -> ModelSurvey:
    job = SurveyJob(registry.stores, "production", recipes, COMPILER, models)
    (found,) = survey.run(job).models
    return found


def keep_night(registry: SomeRegistry, row: NightRow) -> None:
    moment = "2026-11-21T02:00:00+00:00"
    night = Night(date="2026-11-21", started=moment, ended=moment, rows=(row,))
    write_night(open_store(registry.stores.objects), night)


def test_a_version_that_would_be_made_again_is_left_alone(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    serve(registry, delivery, today=True)
    found = look(registry, tmp_path)
    assert not found.is_due
    assert found.why == "nothing has changed"


def test_a_version_that_another_toolchain_made_is_due_and_says_what_has_changed(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    manifest = serve(registry, delivery, today=False)
    found = look(registry, tmp_path)
    assert found.is_due
    assert found.version == 1
    assert found.recipe == manifest.recipe
    assert any(change.startswith("compiler g++ 12 is now") for change in found.changed)


def test_a_recipe_that_the_machine_has_for_the_model_counts(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    serve(registry, delivery, today=True)
    (tmp_path / "toy.toml").write_text("[options]\nfreezing = true\n")
    found = look(registry, tmp_path)
    assert found.is_due
    assert found.recipe == Recipe(options={"freezing": True})
    assert "the recipe" in found.changed


def test_a_recipe_that_is_wrong_is_the_problem_of_its_model_alone(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    serve(registry, delivery, today=True)
    (tmp_path / "toy.toml").write_text("targets = 7\n")
    found = look(registry, tmp_path)
    assert not found.is_due
    assert "the recipe is not valid" in found.problem


def test_a_version_without_its_delivery_can_not_be_rebuilt(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    serve(registry, delivery, today=False, kept=False)
    found = look(registry, tmp_path)
    assert not found.is_due
    assert found.problem == "its delivery was not kept with it"


@pytest.mark.parametrize(
    ("outcome", "why"),
    [("kept", "version 2, made by today's toolchain, is kept back: slower"), ("refused", "")],
)
def test_what_a_night_found_out_about_the_same_rebuild_is_not_found_out_again(
    registry: SomeRegistry, delivery: Path, tmp_path: Path, outcome: str, why: str
) -> None:
    serve(registry, delivery, today=False)
    due = look(registry, tmp_path)
    row = NightRow("toy", "kept", 1, 2, why="slower", made_from=due.today)
    keep_night(registry, row if outcome == "kept" else replace(row, outcome="refused", new=None))
    again = look(registry, tmp_path)
    assert not again.is_due
    assert again.why == why
    assert again.refused == ("" if outcome == "kept" else "slower")
    assert again.kept_back == (2 if outcome == "kept" else None)
    assert look(registry, tmp_path, "toy").is_due, "who names a model wants it rebuilt"


def test_a_model_that_the_alias_does_not_serve_is_left_out_unless_it_is_named(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    manifest, folder = registry.write_from(delivery)
    registry.register(manifest, folder, delivery=delivery)
    job = SurveyJob(registry.stores, "production", tmp_path, COMPILER)
    assert survey.run(job).models == ()
    assert look(registry, tmp_path, "toy").problem == "it has no alias production"


def test_a_ledger_that_was_changed_is_the_problem_of_its_model_alone(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    serve(registry, delivery, today=True)
    registry.release(model="other")
    entry = Path(registry.stores.objects) / "models" / "toy" / "ledger" / "00000002.json"
    entry.chmod(0o644)
    entry.write_bytes(entry.read_bytes().replace(b"a", b"b", 1))
    found = look(registry, tmp_path)
    assert found.model == "toy"
    assert found.problem


def lost_models(registry: SomeRegistry, recipes: Path, alias: str = "production") -> list[str]:
    """Return the models that a survey of all misses, each with why."""
    found = survey.run(SurveyJob(registry.stores, alias, recipes, COMPILER)).models
    return [f"{one.model}: {one.problem}" for one in found if one.problem]


def test_a_model_that_was_served_last_night_and_is_gone_is_reported_once(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    serve(registry, delivery, today=True)
    keep_night(registry, NightRow("gone", "unchanged", 3))
    (text,) = lost_models(registry, tmp_path)
    assert text.startswith("gone: version 3 was served in the night of 2026-11-21")
    assert str(registry.stores.objects) in text
    later = "2026-11-22T02:00:00+00:00"
    row = NightRow("gone", "failed", why=text)
    night = Night(date="2026-11-22", started=later, ended=later, rows=(row,))
    write_night(open_store(registry.stores.objects), night)
    assert lost_models(registry, tmp_path) == []


def test_an_empty_store_that_had_nights_is_no_quiet_night(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    keep_night(registry, NightRow("gone", "replaced", 3, 4))
    assert "version 4 was served" in lost_models(registry, tmp_path)[0]


def test_a_store_that_lost_all_that_was_seen_in_it_is_no_quiet_night(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    serve(registry, delivery, today=True)
    job = SurveyJob(
        replace(registry.stores, seen=tmp_path / "seen.json"), "production", tmp_path, COMPILER
    )
    assert [one.model for one in survey.run(job).models] == ["toy"]
    store = Path(registry.stores.objects)
    store.rename(tmp_path / "unmounted")
    for _ in range(2):  # not there, and an empty folder to mount it on
        with pytest.raises(StoreFailed, match=r"seen in it: expected that of toy, got no ledger"):
            survey.run(job)
        store.mkdir(exist_ok=True)
    store.rmdir()
    (tmp_path / "unmounted").rename(store)
    assert [one.problem for one in survey.run(job).models] == [""]


def test_models_that_are_there_or_were_never_served_are_not_missed(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    serve(registry, delivery, today=True)
    keep_night(registry, NightRow("toy", "unchanged", 1))
    assert lost_models(registry, tmp_path) == []
    # Of another alias nothing is known from that night.
    assert lost_models(registry, tmp_path, "staging") == []


def test_who_asks_for_some_models_hears_of_these_alone(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    serve(registry, delivery, today=True)
    keep_night(registry, NightRow("gone", "unchanged", 3))
    assert look(registry, tmp_path, "toy").problem == ""
