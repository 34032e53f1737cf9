"""A name without a version or an alias: one rule for every command, told on the first line."""

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
    told = run(pull, "toy", "--verify-only").output.splitlines()
    assert told[0] == f"{SERVED} (other aliases: candidate 2)"
    assert told[1].startswith("toy version 1: ")
    pulled = handoff.pull("toy", tmp_path / "pulled")
    assert (pulled.version, pulled.chosen) == (1, told[0].removeprefix("handoff: "))


def test_without_production_the_newest_is_pulled_and_said_to_be(registry: SomeRegistry) -> None:
    told = run(pull, "toy", "--verify-only").output.splitlines()
    assert told[0] == f"{NEWEST} (other aliases: candidate 2)"
    assert told[1].startswith("toy version 2: ")


def test_what_is_named_is_not_explained(registry: SomeRegistry) -> None:
    registry.promote(1)
    for reference, version in (("toy@candidate", 2), ("toy@production", 1), ("toy@2", 2)):
        told = run(pull, reference, "--verify-only").output
        assert told.startswith(f"toy version {version}: ")


def test_show_and_diff_choose_alike(registry: SomeRegistry) -> None:
    registry.promote(1)
    told = run(show, "toy")
    assert told.stderr.startswith(SERVED)
    assert "toy version 1 (@production)" in told.stdout
    told = run(diff, "toy", "toy@candidate", "--json")
    assert told.stderr.startswith(SERVED)
    assert json.loads(told.stdout)["before"] == "toy@1"
