"""The folders of builds: held while they are built, and swept by those that come next."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from handoff.infra.engine.workspaces import keep_workspace, open_workspace, remove_workspace

HOLD = "import sys, handoff.infra.engine.workspaces as w, pathlib; print(w.open_workspace(pathlib.Path(sys.argv[1])), flush=True); sys.stdin.read()"  # noqa: E501


@contextmanager
def another(builds: Path) -> Iterator[Path]:
    """A process that builds there, and is killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(builds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        assert process.stdin is not None
        process.stdin.close()


def left(builds: Path, name: str, age_s: float) -> Path:
    path = builds / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("left")
    moment = time.time() - age_s
    os.utime(path, (moment, moment))
    return path


def test_a_build_that_was_killed_is_removed_by_the_next_one(tmp_path: Path) -> None:
    with another(tmp_path) as killed:
        assert killed.is_dir()
    assert open_workspace(tmp_path).is_dir()
    assert not killed.exists()


def test_a_process_that_opens_several_at_once_has_a_folder_for_each(tmp_path: Path) -> None:
    opened = [open_workspace(tmp_path) for _ in range(4)]
    assert len({*opened}) == 4
    assert all(workspace.is_dir() for workspace in opened)


def test_a_build_under_way_is_left_alone(tmp_path: Path) -> None:
    with another(tmp_path) as other:
        open_workspace(tmp_path)
        assert other.is_dir()


def test_a_refused_build_is_kept_for_a_look(tmp_path: Path) -> None:
    with another(tmp_path) as refused:
        keep_workspace(refused)
    open_workspace(tmp_path)
    assert refused.is_dir()


@pytest.mark.parametrize(
    "name", ["compiler/.making-1", "packages/.entry-1", "programs/.building-1"]
)
def test_what_a_killed_build_left_beside_goes_though_another_one_is_under_way(
    tmp_path: Path, name: str
) -> None:
    old = left(tmp_path, name, age_s=3600)
    with another(tmp_path):
        of_the_other = left(tmp_path, f"{name}2", age_s=-5)
        open_workspace(tmp_path)
        assert not old.exists()
        assert of_the_other.exists(), "the other one may be writing it"


@pytest.mark.parametrize("name", ["headers/c7.h.gch", "headers/c7.h", "levels/1a-avx2", "ready/0a"])
def test_what_compilations_share_is_there_for_the_next_build(tmp_path: Path, name: str) -> None:
    shared = left(tmp_path, f"compiler/{name}", age_s=3600)
    remove_workspace(open_workspace(tmp_path))
    assert shared.exists()


def test_the_last_build_to_end_leaves_nothing_of_those_that_were_killed(tmp_path: Path) -> None:
    first = open_workspace(tmp_path)
    with another(tmp_path) as other:
        # A killed build's compiler that went on beyond the beginning of both.
        written_late = left(tmp_path, "compiler/.making-1", age_s=-5)
        remove_workspace(first)
        assert written_late.exists(), "the other one may be writing it"
        assert other.is_dir()
    remove_workspace(open_workspace(tmp_path))
    assert not written_late.exists()
    assert not other.exists()
