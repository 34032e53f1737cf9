"""Files are cut where others can share their pieces, and every piece is there exactly once."""

from __future__ import annotations

import struct
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from handoff.artifacts.digest import digest_bytes, digest_file
from handoff.artifacts.stores.folder import FolderStore
from handoff.artifacts.stores.objects import Objects, split
from tests.tasks.built_release import BuiltRelease

WEIGHTS = bytes(range(256)) * 256  # 64 KiB


def library(weights: bytes, code: bytes = b"code", offset: int | None = None) -> bytes:
    """Return an ELF file whose sections are the weights, and the names that end it."""
    names = b"\0.lrodata\0.shstrtab\0"
    at = 64 + len(code)
    table = at + len(weights) + len(names)
    entries = struct.pack("<IIQQQQIIQQ", *[0] * 10)
    where = at if offset is None else offset
    entries += struct.pack("<IIQQQQIIQQ", 1, 1, 2, 0, where, len(weights), 0, 0, 64, 0)
    entries += struct.pack("<IIQQQQIIQQ", 10, 3, 0, 0, at + len(weights), len(names), 0, 0, 1, 0)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2
    )
    return header + code + weights + names + entries


def package(library: bytes, compression: int = zipfile.ZIP_STORED, name: str = "m.so") -> bytes:
    """Return a zip with a library between other members."""
    with tempfile.TemporaryFile() as stream:
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("m.wrapper.cpp", "int main;" * 10)
            archive.writestr(name, library, compression)
            archive.writestr("m.json", "{}")
        stream.seek(0)
        return stream.read()


def pieces(folder: Path, data: bytes) -> list[bytes]:
    """Return the pieces that a file is cut into; together they are the file."""
    path = folder / "file"
    path.write_bytes(data)
    spans = split(path)
    assert [span.start for span in spans[1:]] == [span.start + span.size for span in spans[:-1]]
    found = [data[span.start : span.start + span.size] for span in spans]
    assert b"".join(found) == data
    return found


def test_a_library_is_cut_around_its_weights(tmp_path: Path) -> None:
    assert pieces(tmp_path, library(WEIGHTS))[1] == WEIGHTS
    assert len(pieces(tmp_path, library(WEIGHTS))) == 3


def test_weights_behind_a_few_other_bytes_are_the_same_piece(tmp_path: Path) -> None:
    # As ResNet-18's for avx2 and avx512: 48 bytes before the weights, and 16.
    for before in (b"", b"x" * 16, b"y" * 48):
        assert pieces(tmp_path, library(before + WEIGHTS))[1] == WEIGHTS


def test_a_package_is_cut_around_its_library_and_within_it(tmp_path: Path) -> None:
    head, *inner, tail = pieces(tmp_path, package(library(WEIGHTS)))
    assert inner == pieces(tmp_path, library(WEIGHTS))
    assert b"m.wrapper.cpp" in head
    assert b"m.json" in tail


def test_a_package_with_few_weights_is_cut_around_its_library(tmp_path: Path) -> None:
    small = library(b"few")
    assert pieces(tmp_path, package(small))[1:-1] == [small]


def test_the_tensors_of_a_delivery_are_the_same_pieces_in_both_of_its_files(tmp_path: Path) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 8))
    files = tmp_path / "state_dict.pt", tmp_path / "layer.pt"
    torch.save(layer.state_dict(), files[0])
    torch.save(layer, files[1])
    objects = Objects(FolderStore(tmp_path / "store"))
    kept, again = (objects.put_parts(path) for path in files)
    (shared,) = {part.digest for part in kept} & {part.digest for part in again}
    weight = layer.get_parameter("0.weight").detach().numpy().tobytes()
    assert shared == digest_bytes(weight)
    for parts, path in zip((kept, again), files, strict=True):
        assert len(parts) == 3
        objects.fetch_parts(parts, tmp_path / "fetched", digest_file(path))
        assert (tmp_path / "fetched").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text",
        library(WEIGHTS[:-1]),
        library(WEIGHTS, offset=1 << 40),
        b"\x7fELF\x02\x01".ljust(64, b"\xff"),
        package(b"", name="m.bin"),
        package(library(WEIGHTS), zipfile.ZIP_DEFLATED),
        package(library(WEIGHTS))[:-30],
    ],
    ids=["empty", "text", "few", "outside", "garbage", "no_library", "deflated", "cut"],
)
def test_anything_else_is_one_piece(tmp_path: Path, data: bytes) -> None:
    assert pieces(tmp_path, data) == [data]


@given(
    st.sampled_from([library(WEIGHTS), package(library(WEIGHTS)), package(library(b"few"))]),
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=6),
    st.floats(0, 1),
)
@example(library(WEIGHTS), [], 1.0)
def test_pieces_cover_a_file_once_whatever_its_bytes(
    data: bytes, changes: list[tuple[float, bytes]], kept: float
) -> None:
    changed = bytearray(data[: int(len(data) * kept)])
    for place, other in changes:
        # Headers lie at both ends, and a change to the weights changes no cut.
        at = int(place * min(len(changed), 400)) if place < 0.5 else -int((1 - place) * 600)
        changed[at : at + len(other) or None] = other
    with tempfile.TemporaryDirectory() as folder:
        pieces(Path(folder), bytes(changed))


@given(st.binary(max_size=300), st.sampled_from([b"", b"\x7fELF\x02\x01", b"PK\x03\x04"]))
def test_pieces_cover_arbitrary_bytes_once(data: bytes, magic: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pieces(Path(folder), magic + data)


@pytest.mark.compile
def test_a_compiled_library_and_its_package_share_their_bytes(
    built_release: BuiltRelease, tmp_path: Path
) -> None:
    objects = Objects(FolderStore(tmp_path / "store"))
    so, pt2 = (built_release.folder / built_release.slug / f"model.{end}" for end in ("so", "pt2"))
    shared = objects.put_parts(so)
    parts = objects.put_parts(pt2)
    assert [part for part in parts if part in shared] == list(shared)
    stored = sum(found.size_bytes for found in objects.store.keys("objects/"))
    assert stored < 1.2 * so.stat().st_size
    objects.fetch_parts(parts, tmp_path / "back", digest_file(pt2))
    assert (tmp_path / "back").read_bytes() == pt2.read_bytes()
