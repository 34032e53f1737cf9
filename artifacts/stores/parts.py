"""Where a file is cut, so that what several files have in common is kept once.

A package holds the same weights many times: `model.so` ends with them, `model.pt2` contains that
library, the library for another target has other code before the same weights, and so has the one
that was built the night after. Cut at the bounds of the weights, all of these share one part. A
delivery holds its tensors twice, in `state_dict.pt` and in the files of its modules.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from handoff.artifacts.digest import Digest
from handoff.artifacts.machine.elf import find_section

# AOTInductor's section of weights.
_WEIGHTS = b".lrodata"
# Weights are filled up to a multiple of this and end the section; a few bytes may precede them,
# more or fewer from one target to the next.
_ALIGNMENT = 64
# A part costs a request: below this many bytes, sharing isn't worth one.
_LEAST_BYTES = 64 << 10
# An archive's member costs two, as what lies before it is a piece, too.
_LEAST_MEMBER_BYTES = 1 << 20
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


def split(path: Path, also: Iterable[int] = ()) -> tuple[Span, ...]:
    """Return where a file is cut: pieces in order, which cover it exactly once.

    A shared library with at least 64 KiB of weights gives head, weights and tail, cut so that the
    same weights behind other code are the same piece. A `.pt2` gives what precedes its library, the
    library's pieces, and what follows. An archive without a library, as `torch.save` writes it, is
    cut around each member of at least 1 MiB: a delivery holds its tensors in two of these. Anything
    else, and whatever can't be read as what it seems to be, is one piece. It is cut at the offsets
    in `also`, too, which lie within it.
    """
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        at, length = 0, size
        members = list(_stored_members(stream, size))
        libraries = [span for name, span in members if name.endswith(".so")]
        cuts = {0, size, *also}
        if len(libraries) == 1:
            at, length = libraries[0].start, libraries[0].size
            cuts |= {at, at + length}
        elif not libraries:
            large = [span for _, span in members if span.size >= _LEAST_MEMBER_BYTES]
            cuts |= {place for span in large for place in (span.start, span.start + span.size)}
        section = find_section(stream, _WEIGHTS, at=at, size=length)
        if section is not None and section[1] >= _LEAST_BYTES:
            end = at + sum(section)
            cuts |= {end - section[1] // _ALIGNMENT * _ALIGNMENT, end}
    ordered = sorted(cuts)
    if len(ordered) == 1:  # an empty file
        return (Span(0, 0),)
    return tuple(Span(start, end - start) for start, end in pairwise(ordered))


def _stored_members(stream: BinaryIO, size: int) -> Iterator[tuple[str, Span]]:
    """Give name and place of each member of an archive that lies in it as it is; none of others."""
    stream.seek(0)
    if stream.read(4) != _MEMBER_MAGIC:
        return
    try:
        with zipfile.ZipFile(stream) as archive:
            members = [m for m in archive.infolist() if m.compress_type == zipfile.ZIP_STORED]
    except _NOT_AN_ARCHIVE:
        return
    for member in members:
        if not 0 <= member.header_offset <= size - _MEMBER_HEADER.size:
            continue
        stream.seek(member.header_offset)
        magic, name_bytes, extra_bytes = _MEMBER_HEADER.unpack(stream.read(_MEMBER_HEADER.size))
        at = member.header_offset + _MEMBER_HEADER.size + name_bytes + extra_bytes
        if magic == _MEMBER_MAGIC and at + member.file_size <= size:
            yield member.filename, Span(at, member.file_size)
