"""Folders that machines of a stack give each other through the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.errors import PackageRefused, StoreFailed
from handoff.artifacts.host import Stores
from handoff.artifacts.release.layout import write_parts
from handoff.artifacts.stores.objects import Objects, Part, object_key
from handoff.artifacts.stores.store import open_store
from handoff.tasks.fetch import transfer
from handoff.tasks.fetch.messages import ReceiveJob, SendJob


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(str(tmp_path / "store"), "sqlite:///nowhere")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "sent"
    (place / "cpu-avx2").mkdir(parents=True)
    (place / "answer.json").write_text("{}")
    (place / "empty").write_bytes(b"")
    (place / "cpu-avx2" / "model.so").write_bytes(b"\x7fELF not really")
    return place


def files(place: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file()
    }


def test_what_is_received_is_what_was_sent(stores: Stores, folder: Path, tmp_path: Path) -> None:
    sent = transfer.send(SendJob(stores, folder))
    received = transfer.receive(ReceiveJob(stores, sent.parts, tmp_path / "received"))
    assert files(received.folder) == files(folder)


def test_the_same_folder_has_the_same_digest_and_another_has_another(
    stores: Stores, folder: Path
) -> None:
    first = transfer.send(SendJob(stores, folder))
    assert transfer.send(SendJob(stores, folder)) == first
    (folder / "answer.json").write_text("[]")
    assert transfer.send(SendJob(stores, folder)) != first


def test_a_part_that_was_changed_in_the_store_is_refused(
    stores: Stores, folder: Path, tmp_path: Path
) -> None:
    sent = transfer.send(SendJob(stores, folder))
    library = (folder / "cpu-avx2" / "model.so").read_bytes()
    part = Path(stores.objects) / object_key(digest_bytes(library))
    part.chmod(0o644)
    part.write_bytes(library[:-1] + b"!")
    with pytest.raises(StoreFailed, match="is not what its digest says"):
        transfer.receive(ReceiveJob(stores, sent.parts, tmp_path / "received"))
    assert not (tmp_path / "received").exists()


@pytest.mark.parametrize("name", ["../outside", "/absolute", "a/../../b"])
def test_a_list_that_leads_out_of_the_folder_is_refused(
    stores: Stores, tmp_path: Path, name: str
) -> None:
    objects = Objects(open_store(stores.objects))
    data = b"anything"
    parts = objects.put_bytes(write_parts({name: (Part(objects.put_bytes(data), len(data)),)}))
    with pytest.raises(PackageRefused, match="names a file outside of it"):
        transfer.receive(ReceiveJob(stores, parts, tmp_path / "deep" / "received"))
    assert not (tmp_path / "outside").exists()


def test_a_list_that_is_not_there_is_reported(stores: Stores, folder: Path, tmp_path: Path) -> None:
    transfer.send(SendJob(stores, folder))
    nothing = Digest("sha256:" + "0" * 64)
    with pytest.raises(StoreFailed, match="an object is not in the store"):
        transfer.receive(ReceiveJob(stores, nothing, tmp_path / "received"))
