"""Read ELF files with nothing but `struct`: what a shared library and a cubin have in common.

Source of the layout: the System V ABI, "Object Files"; of the machine number and the flags of a
cubin: LLVM's `llvm/BinaryFormat/ELF.h` (`EM_CUDA`, `EF_CUDA_SM`, `ELFABIVERSION_CUDA_V1` and `V2`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little endian, version 1: what x86-64 and cubins are
EM_CUDA = 190
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<qQ")
_SHT_NOBITS = 8
_SHF_ALLOC = 2
_DT_NEEDED = 1


@dataclass(frozen=True)
class Section:
    """A section's name, its flags, and the part of the file that it takes."""

    name: str
    flags: int
    offset: int
    data: bytes
    link: int

    @property
    def is_loaded(self) -> bool:
        """Tell whether the section's bytes are in memory once the file is loaded."""
        return bool(self.flags & _SHF_ALLOC) and bool(self.data)


@dataclass(frozen=True)
class ElfFile:
    """An ELF file's header and sections; `size_bytes` is how far it reaches."""

    machine: int
    abi_version: int
    flags: int
    sections: tuple[Section, ...]
    size_bytes: int

    def section(self, name: str) -> Section | None:
        """Return the first section of this name, or None."""
        return next((section for section in self.sections if section.name == name), None)

    @property
    def capability(self) -> int:
        """The compute capability that a cubin's code is for: 90 for sm_90.

        Raises `ValueError` for a file that is no cubin, or of an unknown version of its ABI.
        """
        if self.machine != EM_CUDA:
            raise ValueError(f"expected a cubin (machine {EM_CUDA}), got machine {self.machine}")
        # Version 8 of the ABI (sm_90 and newer, by CUDA 13) moved the number one byte up.
        if self.abi_version == 7:
            return self.flags & 0xFF
        if self.abi_version == 8:
            return (self.flags >> 8) & 0xFF
        raise ValueError(f"expected a cubin of ABI version 7 or 8, got {self.abi_version}")

    @property
    def needed(self) -> tuple[str, ...]:
        """The shared libraries that the dynamic linker loads with this one."""
        dynamic = self.section(".dynamic")
        if dynamic is None:
            return ()
        names = self.sections[dynamic.link].data
        entries = _DYNAMIC.iter_unpack(dynamic.data)
        return tuple(_text_at(names, value) for tag, value in entries if tag == _DT_NEEDED)


def read_elf(data: bytes | memoryview) -> ElfFile:
    """Return the ELF file that `data` begins with; raise `ValueError` where it is none."""
    if len(data) < _HEADER.size or bytes(data[: len(MAGIC)]) != MAGIC:
        raise ValueError("expected a 64-bit little-endian ELF file, got other bytes")
    header = _HEADER.unpack_from(data)
    ident, _, machine, _, _, segments, table, flags, _, step, steps, width, count, names_at = header
    # A cubin's table of segments is the last thing in it; a library's comes first.
    end = max(table + count * width, segments + steps * step)
    if width != _SECTION.size or end > len(data) or names_at >= count:
        raise ValueError("expected a whole ELF file, got one whose tables are cut off")
    raw = [_SECTION.unpack_from(data, table + index * width) for index in range(count)]
    contents = [_contents(data, entry) for entry in raw]
    sections = tuple(
        Section(_text_at(contents[names_at], entry[0]), entry[2], entry[4], content, entry[6])
        for entry, content in zip(raw, contents, strict=True)
    )
    ends = [entry[4] + len(content) for entry, content in zip(raw, contents, strict=True)]
    return ElfFile(machine, ident[8], flags, sections, max([end, *ends]))


def _contents(data: bytes | memoryview, entry: tuple[int, ...]) -> bytes:
    _, kind, _, _, offset, size, *_ = entry
    if kind == _SHT_NOBITS:
        return b""
    if offset + size > len(data):
        raise ValueError("expected a whole ELF file, got one with a section that is cut off")
    return bytes(data[offset : offset + size])


def _text_at(names: bytes, offset: int) -> str:
    return names[offset : names.index(b"\0", offset)].decode()
