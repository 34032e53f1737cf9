"""Where a section lies in an ELF file: as much of the format as that takes."""

from __future__ import annotations

import os
import struct
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
    found = [_ENTRY.unpack_from(entries, entry_bytes * number) for number in range(count)]
    names = _read(stream, at, size, *found[names_at][4:6])
    if names is None:
        return None
    for name_at, _, _, _, offset, length in found:
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
