"""`handoff pull --delivery`: what a version was made from comes out of the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from handoff.artifacts.digest import digest_folder
from handoff.artifacts.errors import RegistryFailed, UsageProblem
from handoff.infra.cli.registry import pull
from tests.tasks.registry.registering import SomeRegistry, some_registry


@pytest.fixture
def delivery(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir()
    (folder / "module.py").write_text("import torch\n")
    return folder


@pytest.fixture
def registry(tmp_path: Path, delivery: Path, monkeypatch: pytest.MonkeyPatch) -> SomeRegistry:
    """A registry with a version that keeps its delivery, and one before it that doesn't."""
    made = some_registry(tmp_path)
    made.release()
    manifest, folder = made.write_from(delivery, "2026-11-22T00:00:00+00:00")
    made.register(manifest, folder, delivery=delivery)
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HANDOFF_STORE", made.stores.objects)
    monkeypatch.setenv("HANDOFF_TRUSTED_KEYS", made.stores.trusted[0])
    return made


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(pull, [str(one) for one in arguments])


def test_an_alias_or_a_version_gives_the_delivery_that_it_was_made_from(
    registry: SomeRegistry, delivery: Path, tmp_path: Path
) -> None:
    ended = run("toy@candidate", "--delivery", "--to", tmp_path / "again")
    assert ended.exit_code == 0, ended.exception
    assert ended.output.startswith("toy version 2: its delivery ")
    assert digest_folder(tmp_path / "again") == digest_folder(delivery)
    ended = run("toy@2", "--delivery", "--to", tmp_path / "other", "--json")
    answer = json.loads(ended.output)
    assert (answer["model"], answer["version"]) == ("toy", 2)
    assert answer["digest"] == digest_folder(delivery)


def test_a_version_without_one_is_told_with_what_to_do(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    ended = run("toy@1", "--delivery", "--to", tmp_path / "again")
    assert isinstance(ended.exception, RegistryFailed)
    assert "Release it again from its folder" in str(ended.exception)


@pytest.mark.parametrize("extra", [["--verify-only"], ["--for", "cpu-avx2", "--to", "x"], []])
def test_what_makes_no_sense_with_a_delivery_is_refused(
    registry: SomeRegistry, extra: list[str]
) -> None:
    ended = run("toy@2", "--delivery", *extra)
    assert isinstance(ended.exception, UsageProblem)
    assert "expected --delivery --to FOLDER" in str(ended.exception)
