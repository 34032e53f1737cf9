"""A name without a version or an alias: one rule for every command, shown on the first line."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import handoff
from handoff.infra.cli.registry import diff, pull, show
from tests.tasks.registry.registering import SomeRegistry, some_registry

NEWEST = (
    "handoff: toy without a version or alias: version 2, the newest, as nothing is in production"
)
SERVED = "handoff: toy without a version or alias: version 1, which is in production"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SomeRegistry:
    """A registry with two versions, of which the second is the candidate."""
    made = some_registry(tmp_path)
    made.release("2026-11-21T00:00:00+00:00")
    made.release("2026-11-22T00:00:00+00:00")
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HANDOFF_STORE", made.stores.objects)
    monkeypatch.setenv("HANDOFF_TRUSTED_KEYS", made.stores.trusted[0])
    return made


def run(command: click.Command, *arguments: str | Path) -> Result:
    ended = CliRunner().invoke(command, [str(one) for one in arguments])
    assert ended.exit_code == 0, ended.exception
    return ended


def test_what_is_in_production_is_pulled_and_said_to_be(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    registry.promote(1)
    lines = run(pull, "toy", "--verify-only").output.splitlines()
    assert lines[0] == f"{SERVED} (other aliases: candidate 2)"
    assert lines[1].startswith("toy version 1: ")
    pulled = handoff.pull("toy", tmp_path / "pulled")
    assert (pulled.version, pulled.chosen) == (1, lines[0].removeprefix("handoff: "))


def test_without_production_the_newest_is_pulled_and_said_to_be(registry: SomeRegistry) -> None:
    lines = run(pull, "toy", "--verify-only").output.splitlines()
    assert lines[0] == f"{NEWEST} (other aliases: candidate 2)"
    assert lines[1].startswith("toy version 2: ")


def test_what_is_named_is_not_explained(registry: SomeRegistry) -> None:
    registry.promote(1)
    for reference, version in (("toy@candidate", 2), ("toy@production", 1), ("toy@2", 2)):
        text = run(pull, reference, "--verify-only").output
        assert text.startswith(f"toy version {version}: ")


def test_show_and_diff_choose_alike(registry: SomeRegistry) -> None:
    registry.promote(1)
    result = run(show, "toy")
    assert result.stderr.startswith(SERVED)
    assert "toy version 1 (@production)" in result.stdout
    result = run(diff, "toy", "toy@candidate", "--json")
    assert result.stderr.startswith(SERVED)
    assert json.loads(result.stdout)["before"] == "toy@1"
