from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.delivery.contract import CONTRACT_FILE
from handoff.artifacts.digest import digest_file
from handoff.artifacts.errors import DeliveryUnreadable, UsageProblem
from handoff.tasks.intake.files.stage import stage


@pytest.fixture
def delivery(tmp_path: Path) -> Path:
    folder = tmp_path / "delivery"
    folder.mkdir()
    for name in ("module.py", "__init__.py", "state_dict.pt", CONTRACT_FILE, "norm.pt"):
        (folder / name).write_bytes(name.encode() * 1000)
    return folder


def refuse(delivery: Path, match: str) -> None:
    staging = delivery.parent / "staging"
    with pytest.raises(DeliveryUnreadable, match=match):
        stage(delivery, staging)
    assert sorted(path.name for path in delivery.parent.iterdir() if "staging" in path.name) == []


def test_copies_every_file_and_returns_its_digest(delivery: Path) -> None:
    (delivery / "__pycache__").mkdir()
    (delivery / "__pycache__" / "module.cpython-311.pyc").write_bytes(b"never copied")
    staging = delivery.parent / "runs" / "staging"
    files = stage(delivery, staging)
    assert {path.name: digest_file(path) for path in staging.iterdir()} == files
    assert set(files) == {"module.py", "__init__.py", "state_dict.pt", CONTRACT_FILE, "norm.pt"}
    assert [path.name for path in staging.parent.iterdir()] == ["staging"]


def test_a_second_time_finds_the_copy_of_the_first(delivery: Path) -> None:
    staging = delivery.parent / "staging"
    assert stage(delivery, staging) == stage(delivery, staging)


def test_refuses_a_staging_folder_with_other_files(delivery: Path) -> None:
    staging = delivery.parent / "staging"
    stage(delivery, staging)
    (delivery / "norm.pt").write_bytes(b"other weights")
    with pytest.raises(UsageProblem, match="is taken"):
        stage(delivery, staging)


def test_many_at_once_end_with_one_whole_copy(delivery: Path) -> None:
    staging = delivery.parent / "staging"
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda: results.append(stage(delivery, staging))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(result == results[0] for result in results)


def test_refuses_a_link(delivery: Path) -> None:
    (delivery / "norm.pt").unlink()
    (delivery / "norm.pt").symlink_to("/etc/hostname")
    refuse(delivery, "norm.pt is not a plain file")


def test_refuses_a_pipe_without_waiting_for_it(delivery: Path) -> None:
    (delivery / "norm.pt").unlink()
    os.mkfifo(delivery / "norm.pt")
    refuse(delivery, "norm.pt is not a plain file")


def test_a_file_that_this_user_may_not_read_is_reported_with_what_helps(
    delivery: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refused(path: str, *arguments: Any, **options: Any) -> int:
        if str(path).endswith("norm.pt"):
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **options)

    # Root may read everything.
    monkeypatch.setattr(os, "open", refused)
    refuse(delivery, "norm.pt can't be read: expected a file that this user may read")


def test_refuses_a_file_with_a_second_name(delivery: Path) -> None:
    os.link(delivery / "norm.pt", delivery.parent / "kept.pt")
    refuse(delivery, "several names")


@pytest.mark.parametrize("name", ["..pt", "no rm.pt", "evil.so", ".hidden", "é.pt", "norm.pt\n"])
def test_refuses_files_with_other_names(delivery: Path, name: str) -> None:
    (delivery / name).write_bytes(b"")
    refuse(delivery, "doesn't write")


def test_refuses_a_folder_inside_the_delivery(delivery: Path) -> None:
    (delivery / "more.pt").mkdir()
    refuse(delivery, "more.pt is not a plain file")


@pytest.mark.parametrize("name", ["module.py", "__init__.py", "state_dict.pt"])
def test_refuses_a_delivery_that_is_not_whole(delivery: Path, name: str) -> None:
    (delivery / name).unlink()
    refuse(delivery, f"a file {name}")


def test_refuses_a_folder_that_is_not_there(tmp_path: Path) -> None:
    refuse(tmp_path / "nowhere", "can't be read")


@pytest.mark.parametrize("when", ["listed", "seen"])
def test_a_file_that_vanishes_while_it_is_copied_is_reported(
    delivery: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    real: Any = os.listdir if when == "listed" else os.stat

    def then_gone(*args: object, **kwargs: object) -> object:
        found: object = real(*args, **kwargs)
        if when == "listed" or args[0] == "norm.pt":
            (delivery / "norm.pt").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(os, "listdir" if when == "listed" else "stat", then_gone)
    with pytest.raises(
        DeliveryUnreadable, match=r"norm\.pt.* changed while it was copied"
    ) as caught:
        stage(delivery, delivery.parent / "staging")
    assert "Wait until the delivery is complete" in caught.value.remedy


def test_files_that_come_and_go_while_they_are_copied_end_in_a_sentence(delivery: Path) -> None:
    stopping = threading.Event()

    def swap() -> None:
        path, aside = delivery / "norm.pt", delivery.parent / "aside"
        while not stopping.is_set():
            path.rename(aside)
            aside.rename(path)

    swapping = threading.Thread(target=swap)
    swapping.start()
    outcomes = set()
    try:
        for number in range(150):
            try:
                stage(delivery, delivery.parent / f"staging{number}")
                outcomes.add("copied")
            except DeliveryUnreadable as error:
                outcomes.add(error.expected)
    finally:
        stopping.set()
        swapping.join()
    # Without it the folder is a whole delivery, too: this step doesn't read what is in it.
    assert outcomes <= {"copied", "the file that was there"}


def test_a_circle_of_links_is_no_delivery(delivery: Path) -> None:
    (delivery.parent / "a").symlink_to(delivery.parent / "b")
    (delivery.parent / "b").symlink_to(delivery.parent / "a")
    with pytest.raises(DeliveryUnreadable, match="can't be read"):
        stage(delivery.parent / "a", delivery.parent / "staging")
