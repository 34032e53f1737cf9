"""ELF files: where a section lies, which C library one asks for, and the one of this machine."""

from __future__ import annotations

import os
import re
import struct
from functools import cache
from pathlib import Path
from typing import BinaryIO

_HEADER_BYTES = 64
_ENTRY = struct.Struct("<IIQQQQ")


def find_section(
    stream: BinaryIO, name: bytes, *, at: int = 0, size: int | None = None
) -> tuple[int, int] | None:
    """Return offset and size of a section of the 64-bit little-endian ELF file in a stream.

    The ELF file is the `size` bytes from `at` on (all of the stream where it isn't given); the
    offset is counted from `at`. None for anything that isn't such a file, has no such section, or
    says that it lies where the file doesn't reach, whatever the bytes.
    """
    if size is None:
        size = stream.seek(0, os.SEEK_END) - at
    header = _read(stream, at, size, 0, _HEADER_BYTES)
    if header is None or header[:6] != b"\x7fELF\x02\x01":
        return None
    table, entry_bytes, count, names_at = struct.unpack_from("<Q10xHHH", header, 40)
    entries = _read(stream, at, size, table, entry_bytes * count)
    if entries is None or entry_bytes < _ENTRY.size or names_at >= count:
        return None
    sections = [_ENTRY.unpack_from(entries, entry_bytes * number) for number in range(count)]
    names = _read(stream, at, size, *sections[names_at][4:6])
    if names is None:
        return None
    for name_at, _, _, _, offset, length in sections:
        if names[name_at : name_at + len(name) + 1] == name + b"\0" and offset + length <= size:
            return offset, length
    return None


def _read(stream: BinaryIO, at: int, size: int, offset: int, length: int) -> bytes | None:
    """Return bytes of the ELF file; None where it doesn't reach so far."""
    if offset + length > size:
        return None
    stream.seek(at + offset)
    data = stream.read(length)
    return data if len(data) == length else None


# Source of the layout: the Linux Standard Base Core, "Symbol Versioning", and the System V ABI.
_HEADER = struct.Struct("<6s34xQ10xHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NEEDED_FILE = struct.Struct("<HHIII")
_NEEDED_VERSION = struct.Struct("<IHHII")
_SHT_GNU_VERNEED = 0x6FFFFFFE
_GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")


def parse_version(version: str) -> tuple[int, ...]:
    """Return the numbers of `2.34`; raise `ValueError` for what isn't numbers and dots."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6})*", version, re.ASCII):
        raise ValueError(f"expected a version like 2.34, got {version[:40]!r}")
    return tuple(map(int, version.split(".")))


def needed_glibc(library: Path) -> str:
    """Return the newest glibc of which the library uses a symbol: `2.34`; empty for none.

    A machine with an older one can't load the library. Nothing but tables is read, and no weights.
    Raises `ValueError` for what is no 64-bit little-endian ELF file, or one that is cut off.
    """
    with library.open("rb") as stream:
        try:
            names = _read_version_names(stream)
        except struct.error as error:
            raise ValueError("expected a whole ELF file, got one that is cut off") from error
    versions = [found[1] for name in names if (found := _GLIBC.fullmatch(name))]
    return max(versions, key=parse_version, default="")


@cache
def host_glibc() -> str:
    """Return the version of this machine's glibc; empty where the C library is another."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""
    match = re.match(r"glibc (\d+(?:\.\d+)*)", text)
    return match[1] if match else ""


def _read_version_names(stream: BinaryIO) -> list[str]:
    """Return the versions that the file asks for, of whichever library: `GLIBC_2.34`."""
    magic, table, width, count, _ = _HEADER.unpack(stream.read(_HEADER.size))
    if magic != b"\x7fELF\x02\x01" or width != _SECTION.size:
        raise ValueError("expected a 64-bit little-endian ELF file, got other bytes")
    stream.seek(table)
    sections = list(_SECTION.iter_unpack(_read_exactly(stream, count * width)))
    for _, kind, _, _, offset, size, link, files, _, _ in sections:
        if kind == _SHT_GNU_VERNEED:
            if link >= count:
                raise ValueError("expected a whole ELF file, got one without names of versions")
            texts = _read_at(stream, sections[link][4], sections[link][5])
            return _parse_version_names(_read_at(stream, offset, size), texts, files)
    return []


def _parse_version_names(needs: bytes, texts: bytes, files: int) -> list[str]:
    names = []
    file_at = 0
    for _ in range(files):
        _, versions, _, first, next_file = _NEEDED_FILE.unpack_from(needs, file_at)
        version_at = file_at + first
        for _ in range(versions):
            _, _, _, name, next_version = _NEEDED_VERSION.unpack_from(needs, version_at)
            names.append(texts[name : texts.find(b"\0", name)].decode("ascii", "replace"))
            version_at += next_version
        file_at += next_file
    return names


def _read_at(stream: BinaryIO, offset: int, size: int) -> bytes:
    stream.seek(offset)
    return _read_exactly(stream, size)


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise ValueError("expected a whole ELF file, got one that is cut off")
    return data
