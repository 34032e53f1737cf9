"""Say which GPUs the kernels in a package are for, by its bytes: ELF, fat binaries and PTX.

Source of the layout: the System V ABI, "Object Files"; of the machine number and the flags of a
cubin: LLVM's `llvm/BinaryFormat/ELF.h` (`EM_CUDA`, `EF_CUDA_SM`, `ELFABIVERSION_CUDA_V1` and `V2`).

A package is a zip with a shared library; in the library's data lie cubins (ELF files of their own)
or fat binaries, each of which holds cubins and PTX. Nothing is loaded or executed.

NVIDIA doesn't document the layout of a fat binary. What is relied on here (a header with the size,
then for each image its kind and sizes) was read off files that NVIDIA's `fatbinary` wrote, and is
tested against it where it is installed.
"""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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
        """Return whether the section's bytes are in memory once the file is loaded."""
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
    contents = [_section_contents(data, entry) for entry in raw]
    sections = tuple(
        Section(_text_at(contents[names_at], entry[0]), entry[2], entry[4], content, entry[6])
        for entry, content in zip(raw, contents, strict=True)
    )
    ends = [entry[4] + len(content) for entry, content in zip(raw, contents, strict=True)]
    return ElfFile(machine, ident[8], flags, sections, max([end, *ends]))


def _section_contents(data: bytes | memoryview, entry: tuple[int, ...]) -> bytes:
    _, kind, _, _, offset, size, *_ = entry
    if kind == _SHT_NOBITS:
        return b""
    if offset + size > len(data):
        raise ValueError("expected a whole ELF file, got one with a section that is cut off")
    return bytes(data[offset : offset + size])


def _text_at(names: bytes, offset: int) -> str:
    return names[offset : names.index(b"\0", offset)].decode()


_FATBIN_MAGIC = b"\x50\xed\x55\xba\x01\x00\x10\x00"
_FATBIN = struct.Struct("<IHHQ")
_IMAGE = struct.Struct("<HHIQII")
_KINDS: dict[int, Literal["ptx", "cubin"]] = {1: "ptx", 2: "cubin"}
_VERSION = re.compile(rb"^\.version\s+(\d+\.\d+)", re.MULTILINE)
_TARGET = re.compile(rb"^\.target\s+sm_(\d+)([a-z]?)", re.MULTILINE)
_ENTRY = re.compile(rb"\.entry\s+([\w$]+)")


@dataclass(frozen=True)
class EmbeddedKernel:
    """A kernel that was found: machine code (`cubin`) or `ptx`, and the capability it is for.

    `specific` is the letter of an architecture-specific target (`a` of `sm_90a`), whose PTX no
    other GPU can take. Only PTX has a `ptx_version`, and only its text has the letter.
    """

    name: str
    kind: Literal["cubin", "ptx"]
    capability: int
    specific: str = ""
    ptx_version: str = ""


@dataclass(frozen=True)
class Inspection:
    """What was found in a file: kernels, in the order of the bytes, and the libraries it needs."""

    kernels: tuple[EmbeddedKernel, ...]
    needed: tuple[str, ...] = ()

    @property
    def capabilities(self) -> frozenset[int]:
        """The compute capabilities that there is machine code for: `{90}`."""
        return frozenset(k.capability for k in self.kernels if k.kind == "cubin")

    @property
    def names(self) -> frozenset[str]:
        """The names of the kernels that there is machine code for."""
        return frozenset(k.name for k in self.kernels if k.kind == "cubin")


def inspect_binary(path: Path) -> Inspection:
    """Return what is in a package (`.pt2`), a shared library, a cubin, a fat binary or a PTX file.

    Raises `ValueError` for a file that is none of these, or that is cut off.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if n.endswith((".so", ".cubin", ".fatbin"))]
            inspections = [inspect_bytes(archive.read(name)) for name in names]
        kernels = tuple(kernel for part in inspections for kernel in part.kernels)
        return Inspection(kernels, tuple(name for part in inspections for name in part.needed))
    return inspect_bytes(path.read_bytes())


def inspect_bytes(data: bytes) -> Inspection:
    """Return what is in the bytes of one file; raise as `inspect_binary` does."""
    if data.startswith(_FATBIN_MAGIC):
        return Inspection(tuple(_parse_images(data)))
    if data.startswith(MAGIC):
        elf = read_elf(data)
        if elf.machine == EM_CUDA:
            return Inspection((_parse_cubin(data),))
        parts = [section.data for section in elf.sections if section.is_loaded]
        return Inspection(tuple(k for part in parts for k in _find_embedded(part)), elf.needed)
    if _VERSION.search(data) and _TARGET.search(data):
        return Inspection((_parse_ptx(data),))
    raise ValueError("expected a package, an ELF file, a fat binary or PTX, got other bytes")


def _find_embedded(section: bytes) -> Iterator[EmbeddedKernel]:
    """Give the kernels whose files begin anywhere in a section's bytes."""
    at = 0
    data = memoryview(section)
    pattern = re.compile(re.escape(_FATBIN_MAGIC) + b"|" + re.escape(MAGIC))
    while match := pattern.search(data, at):
        part = data[match.start() :]
        if match.group() == _FATBIN_MAGIC:
            yield from _parse_images(part)
            at = match.start() + _fatbin_size(part)
            continue
        # Seven bytes can be there by chance, among the weights for one; a cubin's header can't.
        machine = struct.unpack_from("<H", part, 18)[0] if len(part) >= 64 else 0
        at = match.end()
        if machine == EM_CUDA:
            yield _parse_cubin(part)
            at = match.start() + read_elf(part).size_bytes


def _fatbin_size(data: bytes | memoryview) -> int:
    _, _, header, size = _FATBIN.unpack_from(data)
    if header + size > len(data):
        raise ValueError("expected a whole fat binary, got one that is cut off")
    return int(header + size)


def _parse_images(data: bytes | memoryview) -> Iterator[EmbeddedKernel]:
    end = _fatbin_size(data)
    at = _FATBIN.size
    while at < end:
        kind, _, header, size, packed, _ = _IMAGE.unpack_from(data, at)
        if kind not in _KINDS or packed:
            what = "compressed" if packed else f"of kind {kind}"
            raise ValueError(f"expected plain cubins and PTX in a fat binary, got one {what}")
        image = data[at + header : at + header + size]
        yield _parse_cubin(image) if _KINDS[kind] == "cubin" else _parse_ptx(image)
        at += header + size


def _parse_cubin(data: bytes | memoryview) -> EmbeddedKernel:
    elf = read_elf(data)
    names = [s.name.removeprefix(".text.") for s in elf.sections if s.name.startswith(".text.")]
    return EmbeddedKernel(",".join(names), "cubin", elf.capability)


def _parse_ptx(data: bytes | memoryview) -> EmbeddedKernel:
    version, target, entry = (p.search(data) for p in (_VERSION, _TARGET, _ENTRY))
    if version is None or target is None or entry is None:
        raise ValueError("expected PTX with .version, .target and .entry, got a part of them")
    number, letter = target.groups()
    return EmbeddedKernel(
        entry.group(1).decode(), "ptx", int(number), letter.decode(), version.group(1).decode()
    )
