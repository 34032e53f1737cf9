"""`handoff store`, as a person or a script calls it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from handoff.artifacts.stores.objects import object_key
from tests.infra.commands.test_cli import assert_is_a_sentence, handoff
from tests.tasks.registry.registering import SomeRegistry, some_registry


@pytest.fixture
def registry(tmp_path: Path) -> SomeRegistry:
    """A registry in a folder, with one version."""
    registry = some_registry(tmp_path)
    registry.release()
    return registry


def store(registry: SomeRegistry, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `handoff store` where the registry's keys are trusted."""
    settings = {
        "HANDOFF_TRUSTED_KEYS": registry.stores.trusted[0], "HANDOFF_STORE": registry.stores.objects
    }  # fmt: skip
    home = registry.root.parent / "home"
    return handoff("store", *arguments, home=home, settings=settings)


def test_a_store_is_looked_at_copied_and_verified(registry: SomeRegistry, tmp_path: Path) -> None:
    here, there = registry.stores.objects, str(tmp_path / "copy")
    would = store(registry, "copy", here, there, "--dry-run")
    assert would.returncode == 0, would.stderr
    assert "objects would be copied" in would.stdout
    assert not Path(there).exists()

    answer = json.loads(store(registry, "copy", here, there, "--json").stdout)
    assert (answer["models"], answer["entries"], answer["pretended"]) == (["toy"], 1, False)
    again = store(registry, "copy", here, there)
    assert again.stdout.startswith(f"0 objects copied (0 B), {answer['objects']} are there\n")

    well = store(registry, "verify", there)
    assert (well.returncode, "Nothing lacks" in well.stdout) == (0, True)
    (entry,) = registry.entries()
    (Path(there) / object_key(entry.manifest)).unlink()
    ill = store(registry, "verify", there, "--json")
    assert ill.returncode == 5
    assert [one["versions"] for one in json.loads(ill.stdout)["lacking"]] == [["toy@1"]]
    assert store(registry, "verify").returncode == 0


def test_what_cant_be_copied_is_a_sentence(registry: SomeRegistry, tmp_path: Path) -> None:
    here, there = registry.stores.objects, str(tmp_path / "copy")
    assert_is_a_sentence(store(registry, "copy", here, f"{here}/"), 64, "isn't copied into itself")
    assert_is_a_sentence(store(registry, "copy", there, here), 64, "there is nothing to copy")
    assert_is_a_sentence(store(registry, "copy", here, "ftp://b/c"), 64, "TO names no store")
    assert_is_a_sentence(store(registry, "copy", here), 64, "Missing argument 'TO'")


def test_what_nobody_signed_who_is_trusted_is_not_copied(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    answer = handoff(
        "store", "copy", registry.stores.objects, str(tmp_path / "copy"), home=tmp_path / "home"
    )
    assert_is_a_sentence(answer, 6, "toy")
    assert not (tmp_path / "copy").exists()
