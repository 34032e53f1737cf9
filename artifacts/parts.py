"""Where a file is cut, so that what several files have in common is kept once.

A package holds the same weights many times: `model.so` ends with them, `model.pt2` contains that
library, the library for another target has other code before the same weights, and so has the one
that was built the night after. Cut at the bounds of the weights, all of these share one part.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from artifacts.digest import Digest
from artifacts.elf import find_section

# AOTInductor's section of weights.
_WEIGHTS = b".lrodata"
# Weights are filled up to a multiple of this and end the section; a few bytes may precede them,
# more or fewer from one target to the next.
_ALIGNMENT = 64
# A part costs a request: below this many bytes, sharing isn't worth one.
_LEAST_BYTES = 64 << 10
_MEMBER_MAGIC = b"PK\x03\x04"
_MEMBER_HEADER = struct.Struct("<4s22xHH")
# What zipfile raises for bytes that only look like an archive; `OSError` is the system's, for a
# place before the file's beginning.
_NOT_AN_ARCHIVE = (
    zipfile.BadZipFile, struct.error, ValueError, OverflowError, NotImplementedError, OSError,
)  # fmt: skip


@dataclass(frozen=True)
class Span:
    """A piece of a file, in bytes."""

    start: int
    size: int


@dataclass(frozen=True)
class Part:
    """A piece of a file as an object: its digest and size in bytes."""

    digest: Digest
    size_bytes: int


def split(path: Path) -> tuple[Span, ...]:
    """Return where a file is cut: pieces in order, which cover it exactly once.

    A shared library with at least 64 KiB of weights gives head, weights and tail, cut so that the
    same weights behind other code are the same piece. A `.pt2` gives
    what precedes its library, the library's pieces, and what follows. Anything else, and whatever
    can't be read as what it seems to be, is one piece.
    """
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        at, length = _find_library(stream, size)
        cuts = {0, size, at, at + length}
        section = find_section(stream, _WEIGHTS, at=at, size=length)
        if section is not None and section[1] >= _LEAST_BYTES:
            end = at + sum(section)
            cuts |= {end - section[1] // _ALIGNMENT * _ALIGNMENT, end}
    return _spans(cuts)


def _find_library(stream: BinaryIO, size: int) -> tuple[int, int]:
    """Return offset and size of the library in a `.pt2`; the whole file where there is none."""
    stream.seek(0)
    if stream.read(4) != _MEMBER_MAGIC:
        return 0, size
    try:
        with zipfile.ZipFile(stream) as archive:
            members = [
                info for info in archive.infolist()
                if info.filename.endswith(".so") and info.compress_type == zipfile.ZIP_STORED
            ]  # fmt: skip
    except _NOT_AN_ARCHIVE:
        return 0, size
    if len(members) != 1:
        return 0, size
    member = members[0]
    if not 0 <= member.header_offset <= size - _MEMBER_HEADER.size:
        return 0, size
    stream.seek(member.header_offset)
    magic, name_bytes, extra_bytes = _MEMBER_HEADER.unpack(stream.read(_MEMBER_HEADER.size))
    at = member.header_offset + _MEMBER_HEADER.size + name_bytes + extra_bytes
    if magic != _MEMBER_MAGIC or at + member.file_size > size:
        return 0, size
    return at, member.file_size


def _spans(cuts: Iterable[int]) -> tuple[Span, ...]:
    ordered = sorted(cuts)
    if len(ordered) == 1:  # an empty file
        return (Span(0, 0),)
    return tuple(Span(start, end - start) for start, end in pairwise(ordered))
