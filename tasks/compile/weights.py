"""Where a package keeps its weights, and how other weights are put in their place.

AOTInductor appends the weights to the code as one block: the storage of each, filled up to a
multiple of 64 bytes, in the order of `constants_info_` in the C++ that lies in the package. The
block ends the section `.lrodata` of the shared library; above 2 GB it lies behind the library, with
eight bytes after it (Inductor's `determine_aoti_mmap_flags`). As long as no weight's value has
become part of the code, a model of the same graph and other weights has the same code.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder
from torch.export import ExportedProgram

from handoff.artifacts.machine.elf import find_section
from handoff.tasks.compile.patching import patch_attribute

# Without it, Inductor writes weights of up to 8 elements into the code.
KEEPING_OPTIONS: dict[str, object] = {"always_keep_tensor_constants": True}

_ALIGNMENT = 64
# By which a library knows that what lies behind it are its weights.
_MARK_BYTES = 8
_CHUNK_BYTES = 1 << 20
_CONSTANT = re.compile(
    r"constants_info_\[(\d+)\]\.data_size = (\d+);.*?"
    r'constants_info_\[\1\]\.original_fqn = "([^"]*)";',
    re.DOTALL,
)


@dataclass(frozen=True)
class WeightSlot:
    """The place of one tensor: its name in the program, its offset in the library, its bytes."""

    name: str
    offset: int
    size: int


@contextmanager
def disable_weight_folding() -> Iterator[None]:
    """Keep Inductor from computing with the values of weights of one element in the body."""
    original = UniformValueConstantFolder._deduce_value

    def deduce_value(self: Any, node: torch.fx.Node) -> Any:  # noqa: ANN401
        return self.unknown_value if node.op == "get_attr" else original(self, node)

    with patch_attribute(UniformValueConstantFolder, "_deduce_value", deduce_value):
        yield


def weight_bytes(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor's whole storage, as a package holds them."""
    storage = tensor.detach().untyped_storage()
    data = torch.empty(0, dtype=torch.uint8).set_(storage)
    return bytes(data.numpy())


def first_of_storage(program: ExportedProgram) -> dict[str, str]:
    """Return for each weight the first one that shares its memory: itself, unless they are tied."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(tensor.untyped_storage().data_ptr(), name)
        for name, tensor in program.state_dict.items()
    }


def find_weights(
    program: ExportedProgram, package: Path, library: Path
) -> tuple[WeightSlot, ...] | None:
    """Return where the weights of `program` lie in the library that was built from it.

    None where they don't lie as described above, or where one that the program uses isn't there:
    its value is part of the code then.
    """
    sizes = _read_constants(package)
    tensors = {**program.state_dict, **program.constants}
    if not sizes or any(name not in tensors for name, _ in sizes):
        return None
    # Of weights that are tied, one may stand for all.
    tied = first_of_storage(program)
    if not set(tied.values()) <= {tied.get(name) for name, _ in sizes}:
        return None
    storages = {name: tensors[name].untyped_storage().nbytes() for name, _ in sizes}
    if any(not size - _ALIGNMENT < storages[name] <= size for name, size in sizes):
        return None
    for end in _block_ends(library):
        slots = []
        offset = end - sum(size for _, size in sizes)
        for name, size in sizes:
            # What fills it up to the alignment is left where it is.
            slots.append(WeightSlot(name, offset, storages[name]))
            offset += size
        if _holds_tensors(library, slots, tensors):
            return tuple(slots)
    return None


def _block_ends(library: Path) -> Iterator[int]:
    """Yield the offsets at which the block of weights may end."""
    with library.open("rb") as stream:
        section = find_section(stream, b".lrodata")
        if section is not None:
            yield sum(section)
        yield stream.seek(0, os.SEEK_END) - _MARK_BYTES


def _holds_tensors(
    library: Path, slots: list[WeightSlot], tensors: Mapping[str, torch.Tensor]
) -> bool:
    """Return whether the library has these tensors in these places."""
    if slots[0].offset < 0:
        return False
    with library.open("rb") as stream:
        for slot in slots:
            stream.seek(slot.offset)
            if stream.read(slot.size) != weight_bytes(tensors[slot.name]):
                return False
    return True


def put_weights(
    slots: tuple[WeightSlot, ...], tensors: Mapping[str, torch.Tensor], library: Path
) -> None:
    """Write the tensors into the library's slots; raise `ValueError` where one doesn't fit."""
    with library.open("r+b") as stream:
        for slot in slots:
            data = weight_bytes(tensors[slot.name])
            if len(data) != slot.size:
                raise ValueError(f"expected {slot.size} bytes for {slot.name}, got {len(data)}")
            stream.seek(slot.offset)
            stream.write(data)


def copy_code(library: Path, slots: tuple[WeightSlot, ...], destination: Path) -> None:
    """Copy a library without what its slots hold: there the copy has holes, which read as zeros."""
    with library.open("rb") as source, destination.open("wb") as target:
        size = os.fstat(source.fileno()).st_size
        at = 0
        for slot in sorted(slots, key=lambda slot: slot.offset):
            _copy_span(source, target, at, slot.offset)
            at = slot.offset + slot.size
        _copy_span(source, target, at, size)
        target.truncate(size)
    destination.chmod(0o755)


def _copy_span(source: BinaryIO, target: BinaryIO, start: int, end: int) -> None:
    source.seek(start)
    target.seek(start)
    left = end - start
    while left > 0 and (chunk := source.read(min(left, _CHUNK_BYTES))):
        target.write(chunk)
        left -= len(chunk)


def _read_constants(package: Path) -> list[tuple[str, int]]:
    """Return name and size of each constant, from the C++ in the package."""
    with zipfile.ZipFile(package) as archive:
        names = [name for name in archive.namelist() if name.endswith(".wrapper.cpp")]
        if len(names) != 1:
            return []
        code = archive.read(names[0]).decode("utf-8", "replace")
    return [(match[3], int(match[2])) for match in _CONSTANT.finditer(code)]
