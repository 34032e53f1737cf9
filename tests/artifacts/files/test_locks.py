"""What several processes would write to, one of them has at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from handoff.artifacts.files.locks import (
    is_folder_locked,
    is_same_file,
    lock_folder,
    open_folder,
    try_lock,
)

HOLD = """
import sys, time
from pathlib import Path
from handoff.artifacts.files.locks import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_held_folder_is_nobody_elses_until_the_body_ends(tmp_path: Path) -> None:
    descriptor = open_folder(tmp_path)
    try:
        with lock_folder(tmp_path):
            assert is_folder_locked(tmp_path)
            assert not try_lock(descriptor)
        assert not is_folder_locked(tmp_path)
        assert try_lock(descriptor)
        assert is_folder_locked(tmp_path)
    finally:
        os.close(descriptor)
    assert not is_folder_locked(tmp_path)


def test_a_folder_that_is_not_there_is_held_by_nobody(tmp_path: Path) -> None:
    assert not is_folder_locked(tmp_path / "gone")


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert is_folder_locked(tmp_path)
        process.kill()
        process.wait(10)
        assert not is_folder_locked(tmp_path)


def test_an_open_file_is_known_from_another_one_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w") as stream:
        assert is_same_file(stream.fileno(), path)
        path.unlink()
        assert not is_same_file(stream.fileno(), path)
        path.write_text("another")
        assert not is_same_file(stream.fileno(), path)
