"""Git is asked about a checkout, and says nothing where there is nothing to say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from handoff.artifacts.version import ask_git


def test_git_tells_what_it_knows_of_a_checkout(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "config", "user.name", "Ada"], check=True)
    assert ask_git(tmp_path, "config", "user.name") == "Ada"
    assert ask_git(tmp_path, "rev-parse", "--verify", "HEAD") == ""


def test_without_git_there_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_git(tmp_path, "--version") == ""
