from __future__ import annotations

import struct
from collections import OrderedDict
from pathlib import Path

import pytest
import torch

from handoff.artifacts.errors import DeliveryUnreadable
from handoff.tasks.intake.files.archive import Archive
from handoff.tasks.intake.files.pickled import Call, Instance, OrderedItems, Storage, decode
from handoff.tasks.intake.files.tensors import TensorFile

STATE = {
    "floats": torch.randn(3, 4),
    "halves": torch.randn(5).to(torch.bfloat16),
    "bytes": torch.arange(7, dtype=torch.uint8),
    "wide": torch.arange(7, dtype=torch.int64),
    "eight": torch.randn(4).to(torch.float8_e4m3fn),
    "words": torch.arange(4).to(torch.uint16),
    "complex": torch.randn(2, dtype=torch.complex64),
    "scalar": torch.tensor(3.0),
    "empty": torch.zeros(0, 3),
    "turned": torch.randn(3, 4).T,
    "parameter": torch.nn.Parameter(torch.randn(2)),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    shared = torch.randn(10)
    state = {**STATE, "front": shared[:5], "middle": shared[2:6], "again": shared[:5]}
    torch.save(OrderedDict(state), tmp_path / "state.pt")
    return tmp_path / "state.pt"


def test_every_dense_tensor_comes_back_bit_by_bit(path: Path) -> None:
    file = TensorFile(path)
    assert isinstance(file.content, OrderedItems)
    expected = torch.load(path, weights_only=True)
    assert list(file.content) == list(expected)
    for name, described in file.content.items():
        tensor, other = file.tensor(described), expected[name]
        assert (tensor.dtype, tensor.shape, tensor.stride()) == (
            other.dtype,
            other.shape,
            other.stride(),
        )
        raw = [t.detach().contiguous().view(-1).view(torch.uint8) for t in (tensor, other)]
        assert torch.equal(*raw)


def test_tensors_of_one_storage_share_it_and_equal_ones_are_one(path: Path) -> None:
    file = TensorFile(path)
    assert isinstance(file.content, OrderedItems)
    front, middle, again = (file.tensor(file.content[k]) for k in ("front", "middle", "again"))
    assert front is again
    assert front is not middle
    middle[0] = 42
    assert front[2] == 42


def widen(data: bytes) -> bytes:
    """Return the archive with sizes and offset of its first member in a zip64 field."""
    at = data.index(b"PK\x01\x02")
    name, extra = struct.unpack_from("<2H", data, at + 28)
    packed, size = struct.unpack_from("<2L", data, at + 20)
    (offset,) = struct.unpack_from("<L", data, at + 42)
    field = struct.pack("<2H3Q", 1, 24, size, packed, offset)
    entry = bytearray(data[at : at + 46 + name])
    struct.pack_into("<2L", entry, 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<H", entry, 30, extra + len(field))
    struct.pack_into("<L", entry, 42, 0xFFFFFFFF)
    rest = bytearray(data[at + 46 + name :])
    end64 = rest.index(b"PK\x06\x06")
    struct.pack_into("<Q", rest, end64 + 40, struct.unpack_from("<Q", rest, end64 + 40)[0] + 28)
    locator = rest.index(b"PK\x06\x07")
    moved = struct.unpack_from("<Q", rest, locator + 8)[0] + 28
    struct.pack_into("<Q", rest, locator + 8, moved)
    return data[:at] + bytes(entry) + field + bytes(rest)


def test_reads_sizes_and_offsets_of_64_bits(path: Path) -> None:
    before = Archive(path).members
    path.write_bytes(widen(path.read_bytes()))
    assert Archive(path).members == before


def test_refuses_a_64_bit_field_that_lacks_a_value(path: Path) -> None:
    data = bytearray(widen(path.read_bytes()))
    at = data.index(struct.pack("<2H", 1, 24), data.index(b"PK\x01\x02"))
    struct.pack_into("<H", data, at + 2, 8)
    path.write_bytes(data)
    with pytest.raises(DeliveryUnreadable, match=r"zip64|inside|named"):
        Archive(path)


def test_a_pickle_becomes_a_description_without_any_class(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 3), tmp_path / "linear.pt")
    content, keys = decode(Archive(tmp_path / "linear.pt").read("data.pkl"), "linear.pt")
    assert isinstance(content, Instance)
    assert str(content.kind) == "torch.nn.modules.linear.Linear"
    assert content.state["in_features"] == 2
    parameters = content.state["_parameters"]
    assert isinstance(parameters, dict)
    weight = parameters["weight"]
    assert isinstance(weight, Call)
    tensor, requires_grad, _ = weight.args
    assert requires_grad is True
    assert isinstance(tensor, Call)
    storage, *numbers = tensor.args[:4]
    assert isinstance(storage, Storage)
    assert (storage.numel, numbers) == (6, [0, (3, 2), (2, 1)])
    assert keys == {"0", "1"}


@pytest.mark.parametrize(
    "data",
    [
        b"", b".", b"\x80\x02", b"\x80\x02.", b"\x80\x02NN.", b"\x80\x02(.", b"\x80\x020.",
        b"\x80\x02h\x00.", b"\x80\x02q\x00.", b"\x80\x02K\x01K\x02s.", b"\x80\x02}NNs.",
        b"\x80\x02]Na", b"\x80\x02NR.", b"\x80\x02NNR.", b"\x80\x02N)\x81.", b"\x80\x02N}b.",
        b"\x80\x02X\xff\xff\xff\xff.", b"\x80\x02X\x01\x00\x00\x00\xff.", b"\x80\x02NQ.",
        b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00N.", b"I1\n.", b"S'a'\n.", b"cos\nsystem\n.",
        b"\x80\x02ctorch\nload\n)R.", b"\x80\x02cbuiltins\nset\n]Na\x85R.", b"\x80\x02N(t.",
    ],
)  # fmt: skip
def test_refuses_pickles_that_torch_does_not_write(data: bytes) -> None:
    with pytest.raises(DeliveryUnreadable, match=r"odd\.pt"):
        decode(data, "odd.pt")
