"""Weights that a package has as they were delivered are found in it, and kept once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from handoff.artifacts.digest import digest_file, digest_span
from handoff.artifacts.stores.folder import FolderStore
from handoff.artifacts.stores.objects import Objects, Part, split
from handoff.tasks.compile import shared_weights
from handoff.tasks.compile.shared_weights import DeliveredTensors, delivered_parts

MIB = 1 << 20
DeliveredFiles = dict[Path, Sequence[Part]]


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(FolderStore(tmp_path / "store"))


def delivered(folder: Path, objects: Objects, **tensors: torch.Tensor) -> DeliveredFiles:
    """Keep a delivery's file of weights as a release does; return it with its parts."""
    path = folder / "state_dict.pt"
    torch.save(tensors, path)
    return {path: objects.put_parts(path)}


def stored(objects: Objects) -> int:
    return sum(found.size_bytes for found in objects.store.keys("objects/"))


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def write(folder: Path, *pieces: bytes) -> Path:
    """Write the pieces behind each other, each filled up to a multiple of 64 bytes."""
    path = folder / "model.so"
    path.write_bytes(b"".join(piece + bytes(-len(piece) % 64) for piece in pieces))
    return path


def test_a_tensor_is_found_between_others_and_kept_once(tmp_path: Path, objects: Objects) -> None:
    first, second = torch.randn(9 * MIB // 4), torch.randn(8 * MIB // 4)
    kept = delivered(tmp_path, objects, first=first, second=second)
    library = write(tmp_path, b"code" * 1001, raw(second), b"folded" * 99_999, raw(first), b"end")
    cuts = DeliveredTensors(kept).cuts(library)
    assert len(cuts) == 4
    assert cuts[1] - cuts[0] == 8 * MIB
    before = stored(objects)
    parts = objects.put_parts(library, also=cuts)
    assert stored(objects) - before < MIB
    objects.fetch_parts(parts, tmp_path / "fetched", digest_file(library))
    assert (tmp_path / "fetched").read_bytes() == library.read_bytes()


def test_who_sends_a_package_ahead_cuts_it_as_the_release_does(
    tmp_path: Path, objects: Objects
) -> None:
    folder = tmp_path / "delivery"
    folder.mkdir()
    table = torch.randn(9 * MIB // 4)
    kept = delivered(folder, objects, table=table)
    assert delivered_parts(folder) == kept
    library = write(tmp_path, b"code", raw(table))
    assert len(DeliveredTensors(delivered_parts(folder)).cuts(library)) == 2


def test_what_a_pass_has_changed_and_what_is_small_is_not_cut_out(
    tmp_path: Path, objects: Objects
) -> None:
    changed, small = torch.randn(9 * MIB // 4), torch.randn(7 * MIB // 4)
    kept = delivered(tmp_path, objects, changed=changed, small=small)
    changed[-1] += 1
    library = write(tmp_path, b"code", raw(changed), raw(small))
    assert DeliveredTensors(kept).cuts(library) == ()


def test_a_table_that_begins_with_zeros_is_found(tmp_path: Path, objects: Objects) -> None:
    table = torch.randn(3 * MIB, 1)
    table[:100] = 0
    kept = delivered(tmp_path, objects, table=table)
    library = write(tmp_path, b"code", bytes(MIB), raw(table), bytes(MIB))
    start, end = DeliveredTensors(kept).cuts(library)
    assert library.read_bytes()[start:end] == raw(table)


def test_two_tensors_that_begin_alike_are_told_apart(tmp_path: Path, objects: Objects) -> None:
    one = torch.randn(9 * MIB // 4)
    other = one.clone()
    other[-1] = 7
    kept = delivered(tmp_path, objects, one=one, other=other)
    library = write(tmp_path, b"code", raw(other), raw(one))
    assert len(DeliveredTensors(kept).cuts(library)) == 3, "one ends where the other begins"


def test_numbers_that_are_all_the_same_are_not_looked_for_without_end(
    tmp_path: Path, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []

    def counted(path: Path, start: int, size: int) -> str:
        compared.append(start)
        return digest_span(path, start, size)

    monkeypatch.setattr(shared_weights, "digest_span", counted)
    ones = torch.ones(9 * MIB // 4)
    ones[-1] = 2
    kept = delivered(tmp_path, objects, ones=ones)
    library = write(tmp_path, raw(torch.ones(12 * MIB // 4)))
    assert DeliveredTensors(kept).cuts(library) == ()
    assert 0 < len(compared) < 100


def test_without_a_delivery_nothing_is_looked_for(tmp_path: Path) -> None:
    assert DeliveredTensors({}).cuts(write(tmp_path, bytes(9 * MIB))) == ()


def test_a_small_or_an_empty_file_is_not_even_read(tmp_path: Path, objects: Objects) -> None:
    kept = delivered(tmp_path, objects, table=torch.randn(9 * MIB // 4))
    for size in (0, 1, 63, 64):
        (tmp_path / "small").write_bytes(bytes(size))
        assert DeliveredTensors(kept).cuts(tmp_path / "small") == ()


@given(
    st.lists(st.sampled_from([0, 1, 2, 3]), max_size=5),
    st.lists(st.integers(0, 300), min_size=6, max_size=6),
)
def test_whatever_lies_between_the_cuts_are_delivered_tensors_or_the_rest(
    order: list[int], gaps: list[int]
) -> None:
    tensors = [raw(torch.full((size,), float(size)) * torch.arange(size)) for size in (90, 128, 64)]
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as temporary:
        folder = Path(temporary)
        patch.setattr(shared_weights, "_LEAST_BYTES", 256)
        patch.setattr(shared_weights, "_WINDOW", 128)
        kept: DeliveredFiles = {}
        for place, data in enumerate(tensors):
            path = folder / f"{place}.bin"
            path.write_bytes(data)
            kept[path] = (Part(digest_file(path), len(data)),)
        # 3 stands for what no delivery has.
        pieces = [(tensors[one] if one < 3 else b"\x09" * 320) for one in order]
        between = zip(gaps, pieces, strict=False)
        filled = [piece for gap, one in between for piece in (bytes(gap), one)]
        library = write(folder, *filled)
        spans = split(library, DeliveredTensors(kept).cuts(library))
        data = library.read_bytes()
        found = [data[span.start : span.start + span.size] for span in spans]
        assert b"".join(found) == data
        wanted = [tensors[one] for one in order if one < 3]
        assert [piece for piece in found if piece in tensors] == wanted
