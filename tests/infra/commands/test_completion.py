"""Shell completion: the scripts are what the shells take, and a Tab is quick and never an error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from handoff.infra.cli.completion import SHELLS, complete_code, complete_model
from handoff.infra.explaining.explanations import explanations
from tests.infra.commands.test_cli import assert_is_a_sentence, handoff

CONTEXT = click.Context(click.Command("show"))
PARAMETER = click.Argument(["name"])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home whose store holds two models, and something that is none."""
    for path in ("resnet18/aliases", "recommender/aliases", ".staging", "$(reboot)"):
        (tmp_path / "store" / "models" / path).mkdir(parents=True)
    for alias in ("candidate", "production"):
        (tmp_path / "store" / "models" / "resnet18" / "aliases" / f"{alias}.json").touch()
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path))
    monkeypatch.delenv("HANDOFF_STORE", raising=False)
    return tmp_path


def completed(typed: str) -> list[str]:
    return [item.value for item in complete_model(CONTEXT, PARAMETER, typed)]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_is_one_that_it_reads(shell: str, tmp_path: Path) -> None:
    result = handoff("completion", shell, home=tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"_HANDOFF_COMPLETE={shell}_complete" in result.stdout
    if shutil.which(shell):
        parsed = subprocess.run([shell, "-n"], input=result.stdout, text=True, check=False)
        assert parsed.returncode == 0


def test_another_shell_is_reported(tmp_path: Path) -> None:
    assert_is_a_sentence(handoff("completion", "csh", home=tmp_path), 64, "csh", "bash")


def ask(words: str, home: Path) -> tuple[list[str], float]:
    """Return what bash would get for a line, and the processor's seconds that it took."""
    count = str(len(words.split(" ")) - 1)
    asked = {"_HANDOFF_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": count}
    code = "import sys; sys.argv[0] = 'handoff'; from handoff.infra.cli.main import main; main()"
    before = os.times()
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked, "HANDOFF_HOME": str(home)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.stderr == ""
    after = os.times()
    took_s = after.children_user + after.children_system
    took_s -= before.children_user + before.children_system
    return [line.partition(",")[2] for line in result.stdout.splitlines()], took_s


def test_commands_codes_and_models_are_completed_within_a_blink(home: Path) -> None:
    assert ask("handoff compl", home)[0] == ["completion"]
    assert ask("handoff explain unmoved", home)[0] == ["unmoved-output"]
    models, took_s = ask("handoff show re", home)
    assert models == ["recommender", "resnet18"]
    assert took_s < 0.3
    assert "--dry-run" in ask("handoff release --d", home)[0]


def test_behind_a_model_come_its_aliases(home: Path) -> None:
    assert completed("resnet18@p") == ["resnet18@production"]
    assert completed("") == ["recommender", "resnet18"]


@pytest.mark.parametrize("typed", ["../resnet18@", "none@", "..@", "\0@", "@"])
def test_what_leads_nowhere_completes_to_nothing(typed: str, home: Path) -> None:
    assert completed(typed) == []


@pytest.mark.parametrize("store", ["s3://bucket/prefix", "ftp://nowhere", "/no/such/folder"])
def test_a_store_that_cant_be_looked_into_completes_to_nothing_and_asks_no_machine(
    store: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setenv("HANDOFF_STORE", store)
    monkeypatch.setattr("socket.getaddrinfo", lambda *given, **_: asked.append(given))
    monkeypatch.setattr("socket.socket.connect", lambda *given: asked.append(given))
    assert completed("res") == []
    assert asked == []


def test_codes_come_with_what_they_are() -> None:
    items = complete_code(CONTEXT, PARAMETER, "golden")
    assert {item.value: item.help for item in items} == {
        code: one.title for code, one in explanations().items() if code.startswith("golden")
    }
