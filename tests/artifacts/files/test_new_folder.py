"""Folders take another's place whole, and scratch folders leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from handoff.artifacts.files.writing import replace_folder, scratch_folder


def filled(folder: Path, name: str) -> Path:
    folder.mkdir()
    (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_folder_takes_the_place_of_what_was_there(tmp_path: Path, *, is_taken: bool) -> None:
    built, place = filled(tmp_path / "built", "new"), tmp_path / "place"
    if is_taken:
        filled(place, "old")
    replace_folder(built, place)
    assert [path.name for path in place.iterdir()] == ["new"]
    assert not built.exists()


def test_a_scratch_folder_is_private_and_gone_after_the_body(tmp_path: Path) -> None:
    with scratch_folder(tmp_path, ".work-") as folder:
        assert folder.name.startswith(".work-")
        assert folder.stat().st_mode & 0o777 == 0o700
        filled(folder / "below", "file")
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_folder_is_gone_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), scratch_folder(tmp_path, ".work-"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_folder_that_was_renamed_stays(tmp_path: Path) -> None:
    with scratch_folder(tmp_path, ".work-") as folder:
        (folder / "file").write_text("kept")
        folder.rename(tmp_path / "kept")
    assert (tmp_path / "kept" / "file").read_text() == "kept"


def test_what_a_link_leads_to_stays_when_a_scratch_folder_goes(tmp_path: Path) -> None:
    outside = filled(tmp_path / "outside", "file")
    with scratch_folder(tmp_path, ".work-") as folder:
        (folder / "link").symlink_to(outside)
    assert list(tmp_path.iterdir()) == [outside]
    assert (outside / "file").exists()
