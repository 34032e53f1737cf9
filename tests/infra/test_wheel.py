"""The wheel: one package that anyone can install, the same from the same commit."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


def test_only_handoff_can_be_imported_of_it(names: list[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"handoff"}


def test_it_holds_every_file_of_the_rooms_that_git_keeps(names: list[str]) -> None:
    rooms = ("artifacts", "flows", "infra", "tasks")
    listed = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", *rooms]
    kept = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    held = {name.removeprefix("handoff/") for name in names if name.startswith("handoff/")}
    assert {"infra/runner/release.cpp", "tasks/report/templates/release.html.j2"} <= set(kept)
    assert set(kept) <= held
    assert held - set(kept) == {"__init__.py", "__main__.py", "py.typed", "commit.txt"}


def test_it_says_which_commit_it_is_of_and_which_extras_there_are(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata_file,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = email.message_from_bytes(archive.read(metadata_file))
        commit = archive.read("handoff/commit.txt").decode().strip()
    head = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    assert commit == subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()
    assert set(metadata.get_all("Provides-Extra", [])) == {"s3", "release", "stack"}


def test_the_same_commit_gives_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    assert build(tmp_path).read_bytes() == wheel.read_bytes()
