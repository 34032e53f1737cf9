"""Attacks in the archives that hold weights, and weights that are not the ones delivered."""

from __future__ import annotations

import io
import shutil
import struct
import zipfile
from pathlib import Path

import pytest
import torch

from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from tests.tasks.intake.attacks.planting import refuse
from tests.tasks.intake.models import CASES, deliver, make_model


def add_member(path: Path, name: str, *, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "a", compression) as archive:
        archive.writestr(name, bytes(1 << 16))


@pytest.mark.parametrize("name", ["../evil", "norm/../../evil", "norm/data/x", "/norm/version"])
def test_refuses_members_with_other_names(folder: Path, name: str) -> None:
    add_member(folder / "norm.pt", name)
    refuse(folder, "members named as torch.save names them")


def test_refuses_a_member_twice(folder: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        add_member(folder / "norm.pt", "norm/data/0")
    refuse(folder, "members of different names")


def test_refuses_a_member_that_nobody_mentions(folder: Path) -> None:
    add_member(folder / "norm.pt", "norm/data/77")
    refuse(folder, "one member for each storage")


def test_refuses_compressed_members(folder: Path) -> None:
    with zipfile.ZipFile(folder / "norm.pt") as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(folder / "norm.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    refuse(folder, "stored as it is")


def test_refuses_members_that_overlap(folder: Path) -> None:
    data = bytearray((folder / "norm.pt").read_bytes())
    first = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", first + 1)
    offset, size = struct.unpack_from("<L", data, first + 42)[0], 1 << 12
    struct.pack_into("<LL", data, first + 20, size, size)
    assert offset < struct.unpack_from("<L", data, second + 42)[0]
    (folder / "norm.pt").write_bytes(data)
    refuse(folder, "norm.pt")


@pytest.mark.parametrize("name", ["norm.pt", "state_dict.pt", "encoder.pt"])
def test_refuses_a_file_that_was_cut(folder: Path, name: str) -> None:
    path = folder / name
    data = path.read_bytes()
    for size in (0, 1, 21, 22, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        refuse(folder, name)


def test_refuses_a_flipped_bit_in_the_weights(folder: Path) -> None:
    path = folder / "encoder.pt"
    data = bytearray(path.read_bytes())
    weights = zipfile.ZipFile(io.BytesIO(data)).getinfo("encoder/data/0")
    data[weights.header_offset + 200 + weights.file_size // 2] ^= 1
    path.write_bytes(data)
    refuse(folder, "checksum")


def test_refuses_weights_swapped_between_deliveries(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    other = make_model("attention")
    for parameter in other.parameters():
        parameter.data.add_(1)
    deliver(other, tmp_path / "other", CASES["attention"][1])
    shutil.copy(tmp_path / "other" / "state_dict.pt", folder / "state_dict.pt")
    refuse(folder, "with the same bits")


def test_the_untouched_delivery_is_taken_in(folder: Path) -> None:
    take_in(IntakeJob(folder, folder.parent / "staging"))
    assert read_delivery(folder.parent / "staging").findings == ()
