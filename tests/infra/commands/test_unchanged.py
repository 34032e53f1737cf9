"""A release that would change nothing is found out without its flow; all else is left to that."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.recipe.recipe import Recipe
from handoff.infra.commands.dry_run import find_unchanged
from handoff.infra.settings import Settings, compiler_name
from handoff.tasks.compile.fingerprint import fingerprint_release
from tests.tasks.registry.registering import SomeRegistry, some_registry

CONTRACT = """format = 1
draw = "random"

[model]
name = "toy"
class_name = "Toy"
torch = "2.15.0"
captured_by = "torch.fx"

[[inputs]]
name = "x"
dtype = "float32"
shape = ["batch", 3]

[dimensions.batch]
min = 1
max = 1024
"""


@pytest.fixture
def delivery(tmp_path: Path) -> Path:
    folder = tmp_path / "delivery"
    folder.mkdir()
    (folder / "delivery.toml").write_text(CONTRACT)
    (folder / "module.py").write_text("# the code")
    return folder


@pytest.fixture
def registry(tmp_path: Path, delivery: Path) -> SomeRegistry:
    """Version 1 of `toy`, @candidate, that says that it was made of the delivery today."""
    registry = some_registry(tmp_path)
    manifest, folder = registry.write_from(delivery)
    fingerprint = fingerprint_release(manifest.delivery, Recipe(), compiler_name())
    made = replace(manifest, fingerprint=fingerprint)
    (folder / "manifest.json").write_bytes(made.to_bytes())
    registry.register(made, folder)
    return registry


def found(
    registry: SomeRegistry, delivery: Path, recipe: Recipe | None = None, alias: str = "candidate"
) -> int | None:
    settings = Settings(registry.root.parent / "home", registry.stores, "", registry.key)
    standing = find_unchanged(settings, delivery, recipe or Recipe(), alias)
    return standing.version if standing else None


def test_the_version_that_the_alias_stands_for_is_found_again(
    registry: SomeRegistry, delivery: Path
) -> None:
    assert found(registry, delivery) == 1
    shutil.copytree(delivery, delivery.parent / "copy")
    (delivery.parent / "copy" / "__pycache__").mkdir()
    assert found(registry, delivery.parent / "copy") == 1


def test_other_code_another_recipe_and_another_alias_are_left_to_the_flow(
    registry: SomeRegistry, delivery: Path
) -> None:
    assert found(registry, delivery, replace(Recipe(), targets=("cpu-avx2",))) is None
    assert found(registry, delivery, alias="trial") is None
    (delivery / "module.py").write_text("# other code")
    assert found(registry, delivery) is None


def test_an_alias_that_has_moved_on_is_left_to_the_flow(
    registry: SomeRegistry, delivery: Path
) -> None:
    registry.release(created="2026-02-02T00:00:00Z")
    assert found(registry, delivery) is None


def test_a_link_in_the_delivery_is_not_followed(registry: SomeRegistry, delivery: Path) -> None:
    (delivery / "module.py").rename(delivery.parent / "module.py")
    (delivery / "module.py").symlink_to(delivery.parent / "module.py")
    assert found(registry, delivery) is None


def test_a_release_whose_files_are_lost_from_the_store_is_made_anew(
    registry: SomeRegistry, delivery: Path
) -> None:
    release = registry.releases.read("toy", registry.releases.find("toy", 1))
    some = next(digest for name, digest in release.claim.files.items() if name.endswith(".so"))
    (Path(registry.stores.objects) / "objects" / "sha256" / some.hex).unlink()
    assert found(registry, delivery) is None


def test_a_ledger_that_is_not_verified_is_told_by_the_flow(
    registry: SomeRegistry, delivery: Path
) -> None:
    for key in Path(registry.stores.trusted[0]).iterdir():
        key.unlink()
    assert found(registry, delivery) is None


def test_what_is_no_delivery_is_told_by_the_flow(registry: SomeRegistry, delivery: Path) -> None:
    (delivery / "delivery.toml").write_text("nonsense = ")
    assert found(registry, delivery) is None
