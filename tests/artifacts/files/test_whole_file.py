"""Small files are there whole or not at all, and what a killed writer left goes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from handoff.artifacts.files.writing import UNFINISHED, keep_newest, new_file, write_atomically


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("is_synced", [False, True])
@pytest.mark.parametrize("content", ["ä\n", "ä\n".encode()])
def test_text_and_bytes_take_the_place_of_what_was_there(
    tmp_path: Path, content: str | bytes, *, is_synced: bool
) -> None:
    file = tmp_path / "file"
    file.write_text("a longer one that was there before")
    write_atomically(file, content, is_synced=is_synced)
    assert file.read_bytes() == "ä\n".encode()
    assert list(tmp_path.iterdir()) == [file]


def test_only_the_owner_may_read_a_file_unless_another_mode_is_asked_for(
    tmp_path: Path, umask: None
) -> None:
    write_atomically(tmp_path / "own", "secret")
    write_atomically(tmp_path / "all", "public", mode=0o666)
    assert (mode_of(tmp_path / "own"), mode_of(tmp_path / "all")) == (0o600, 0o644)


def test_what_can_not_be_written_leaves_what_was_there_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    file = tmp_path / "file"
    file.write_text("before")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        write_atomically(file, "after", is_synced=True)
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "gone" / "file", "text")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    (tmp_path / f"{UNFINISHED}left").write_text("half")
    (tmp_path / "another's").write_text("whole")
    with new_file(tmp_path, UNFINISHED) as (living, _):
        write_atomically(tmp_path / "file", "text")
        assert {path.name for path in tmp_path.iterdir()} == {"another's", "file", living.name}


def test_the_files_that_were_written_last_stay(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old", "oldest")):
        path = tmp_path / f"{name}.json"
        path.write_text("{}")
        os.utime(path, (1000 - age, 1000 - age))
    keep_newest(tmp_path, 2)
    assert {path.stem for path in tmp_path.iterdir()} == {"new", "old"}
