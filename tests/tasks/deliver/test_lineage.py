"""Lineage says what git says, and nothing that is secret."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.delivery.contract import Lineage
from handoff.tasks.deliver.messages import DeliverJob
from handoff.tasks.deliver.step import lineage_from_git, run
from handoff.tasks.inspect.step import missing_lineage


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("epochs = 1\n")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_folder_without_git_has_no_lineage(tmp_path: Path) -> None:
    assert lineage_from_git(tmp_path) == Lineage()


def test_a_clean_commit_is_named(repository: Path) -> None:
    commit = lineage_from_git(repository).commit
    assert len(commit) == 40
    assert set(commit) <= set("0123456789abcdef")


def test_changes_on_top_of_a_commit_are_reported(repository: Path) -> None:
    (repository / "train.py").write_text("epochs = 2\n")
    lineage = lineage_from_git(repository)
    assert lineage.commit.endswith("-dirty")
    assert lineage.short_commit(8) == f"{lineage.commit[:8]}-dirty"
    assert replace(lineage, commit=lineage.commit[:40]).short_commit() == lineage.commit[:12]


def test_a_commit_that_lacks_the_factory_s_own_file_does_not_hold_the_model(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (repository / "untracked.py").write_text("epochs = 2\n")
    # What lies about is no part of it, nor is what was installed elsewhere or is ignored.
    installed = tmp_path_factory.mktemp("installed") / "models.py"
    installed.write_text("epochs = 2\n")
    (repository / ".git" / "info" / "exclude").write_text("venv/\n")
    (repository / "venv").mkdir()
    (repository / "venv" / "models.py").write_text("epochs = 2\n")
    for held in (None, repository / "train.py", installed, repository / "venv" / "models.py"):
        assert not lineage_from_git(repository, held).commit.endswith("-dirty")
    assert lineage_from_git(repository, repository / "untracked.py").commit.endswith("-dirty")


@pytest.mark.parametrize(
    ("remote", "expected"),
    [
        ("https://ann:s3cret@git.example.org/team/model.git",
         "https://git.example.org/team/model.git"),
        ("https://tok3n@git.example.org/team/model.git", "https://git.example.org/team/model.git"),
        ("https://ann:p@ss@git.example.org/model.git", "https://git.example.org/model.git"),
        ("git@git.example.org:team/model.git", "git@git.example.org:team/model.git"),
    ],
)  # fmt: skip
def test_credentials_in_the_remote_are_left_out(
    remote: str, expected: str, repository: Path
) -> None:
    git(repository, "remote", "add", "origin", remote)
    assert lineage_from_git(repository).repository == expected


def test_the_first_remote_counts_where_none_is_called_origin(repository: Path) -> None:
    git(repository, "remote", "add", "upstream", "https://git.example.org/upstream.git")
    assert lineage_from_git(repository).repository == "https://git.example.org/upstream.git"
    git(repository, "remote", "add", "origin", "https://git.example.org/own.git")
    assert lineage_from_git(repository).repository == "https://git.example.org/own.git"


def test_what_a_recipe_requires_is_reported_with_what_lacks_and_how_to_give_it() -> None:
    (finding,) = missing_lineage(Lineage(author="A"), ("author", "commit", "training_run"))
    assert "requires commit and training_run, which the delivery doesn't say" in finding.message
    assert 'Write commit = "...", training_run = "..." under [source] in deliv' in finding.remedy
    assert 'lineage=Lineage(commit="...", training_run="...")' in finding.remedy
    assert "git" not in finding.remedy  # which knows no training run
    (finding,) = missing_lineage(Lineage(), ("author",))
    assert "or deliver from a clean git checkout" in finding.remedy


def test_a_checkout_without_a_remote_is_reported_with_what_it_lacks(repository: Path) -> None:
    (repository / "lineage_train.py").write_text(
        "import torch\ndef build():\n    return torch.nn.Linear(8, 4), (torch.zeros(2, 8),)\n"
    )
    result = run(DeliverJob("lineage_train:build", repository, repository / "out"))
    assert any("has no remote" in note for note in result.notes)
    (finding,) = missing_lineage(result.contract.source, ())
    assert "doesn't say its repository" in finding.message
    assert "git remote add origin URL" in finding.remedy
    (finding,) = missing_lineage(Lineage(), ())
    assert "doesn't say its repository and commit" in finding.message
    assert "remote" not in finding.remedy
    git(repository, "remote", "add", "origin", "https://git.example.org/own.git")
    result = run(DeliverJob("lineage_train:build", repository, repository / "other"))
    assert not any("remote" in note for note in result.notes)
    assert list(missing_lineage(result.contract.source, ())) == []


def test_the_author_is_who_git_is_set_up_for(repository: Path) -> None:
    git(repository, "config", "user.name", "Ann")
    git(repository, "config", "user.email", "ann@example.org")
    assert lineage_from_git(repository).author == "Ann <ann@example.org>"
