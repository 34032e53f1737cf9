"""Objects: bytes under their own digest, on top of any store.

An object lies at `objects/sha256/<hex>`. What is fetched is checked against its digest before it
appears under its name: a store need not be trusted.

Files are cut so that what several have in common is kept once.

A package holds the same weights many times: `model.so` ends with them, `model.pt2` contains that
library, the library for another target has other code before the same weights, and so has the one
that was built the night after. Cut at the bounds of the weights, all of these share one part. A
delivery holds its tensors twice, in `state_dict.pt` and in the files of its modules.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from handoff.artifacts.digest import Digest, digest_bytes, digest_file, digest_span
from handoff.artifacts.errors import EnvironmentLacking, StoreFailed
from handoff.artifacts.files.locks import is_same_file, lock
from handoff.artifacts.files.writing import flush
from handoff.artifacts.machine.elf import find_section
from handoff.artifacts.stores.store import Progress, Store

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


# Whoever collects garbage leaves an object alone for so long, though nothing names it yet. Hence
# one that is found here is written again when half of that is over: a release that counts on it
# has the other half to say so.
GRACE = timedelta(hours=24)


def object_key(digest: Digest) -> str:
    """Return the key of an object."""
    return f"objects/sha256/{digest.hex}"


class Objects:
    """The objects of a store; every method raises `StoreFailed` when it can't."""

    def __init__(self, store: Store) -> None:
        """Use the objects of `store`; nothing is sent yet."""
        self.store = store

    def put_bytes(self, data: bytes) -> Digest:
        """Keep `data` and return its digest; a known object isn't sent again."""
        digest = digest_bytes(data)
        if not self._is_known(digest, len(data)):
            self.store.replace(object_key(digest), data)
        return digest

    def put_parts(
        self, path: Path, *, also: Iterable[int] = (), progress: Progress | None = None
    ) -> tuple[Part, ...]:
        """Keep a file cut as `split` says, and at `also`; return its parts in order.

        A known object isn't sent again.
        """
        return tuple(self._put_span(path, span, progress) for span in split(path, also))

    def has(self, digest: Digest) -> bool:
        """Return whether the object is there."""
        return self.store.stat(object_key(digest)) is not None

    def fetch(self, digest: Digest, to: Path, *, progress: Progress | None = None) -> None:
        """Write the object to `to`, whole and checked, or not at all under that name.

        What was fetched before a break lies beside `to`, and is gone on from at the next call.
        """
        stored = self.store.stat(object_key(digest))
        if stored is None:
            raise missing_object(digest, self.store.location)
        part = Part(digest, stored.size_bytes)
        self.fetch_parts((part,), to, digest, progress=progress)

    def fetch_parts(
        self,
        parts: Sequence[Part],
        to: Path,
        digest: Digest | None,
        *,
        progress: Progress | None = None,
    ) -> None:
        """Write the parts, one behind the other, to `to`, which has the digest `digest` then.

        As `fetch`: whole and checked, or not at all under that name, and gone on from after a
        break. A part whose bytes are wrong is fetched once more. Without a digest only the parts
        are checked, each by its own.
        """
        parts_digest = digest_bytes("".join(f"{part.digest.hex}\n" for part in parts).encode())
        with _partial_file(to, digest or parts_digest) as partial:
            at = 0
            for part in parts:
                self._fetch_part(part, partial, at, progress)
                at += part.size_bytes
            os.truncate(partial, at)
            is_single_part = [part.digest for part in parts] == [digest]
            if digest is not None and not is_single_part and digest_file(partial) != digest:
                partial.unlink()
                raise corrupted_object(digest, "parts of another file", self.store.location)
            flush(partial)
            partial.replace(to)

    def read_bytes(self, digest: Digest, limit: int) -> bytes:
        """Return an object of at most `limit` bytes, checked."""
        data = self.store.read(object_key(digest), limit)
        if data is None:
            raise missing_object(digest, self.store.location)
        if digest_bytes(data) != digest:
            raise corrupted_object(digest, digest_bytes(data).short, self.store.location)
        return data

    def _put_span(self, path: Path, span: Span, progress: Progress | None) -> Part:
        digest = digest_span(path, span.start, span.size)
        if not self._is_known(digest, span.size):
            self.store.upload(
                object_key(digest), path, span.size, digest.hex, progress, at=span.start
            )
        elif progress is not None:
            progress(span.size)
        return Part(digest, span.size)

    def _is_known(self, digest: Digest, size: int) -> bool:
        """Return whether the object is there, whole as far as can be seen, and young enough."""
        stored = self.store.stat(object_key(digest))
        return (
            stored is not None
            and stored.size_bytes == size
            and datetime.now(UTC) - stored.modified < GRACE / 2
            and self.store.matches(object_key(digest), digest.hex)
        )

    def _fetch_part(self, part: Part, partial: Path, at: int, progress: Progress | None) -> None:
        wrong_digest = ""
        for _ in range(2):
            if partial.stat().st_size < at + part.size_bytes:
                self.store.download(object_key(part.digest), partial, progress, at=at)
            elif progress is not None:
                progress(part.size_bytes)
            digest = digest_span(partial, at, part.size_bytes)
            if digest == part.digest:
                return
            wrong_digest = digest.short
            os.truncate(partial, at)
        raise corrupted_object(part.digest, wrong_digest, self.store.location)


@contextmanager
def _partial_file(to: Path, digest: Digest) -> Iterator[Path]:
    """Give the file beside `to` that an object is fetched into; one process at a time has it."""
    path = to.parent / f".{digest.hex}.partial"
    try:
        while True:
            with path.open("ab") as stream:
                lock(stream.fileno())
                # Whoever held it until now may have finished it and given it its name.
                if not is_same_file(stream.fileno(), path):
                    continue
                try:
                    yield path
                finally:
                    if is_same_file(stream.fileno(), path) and path.stat().st_size == 0:
                        path.unlink()
                return
    except OSError as error:
        raise EnvironmentLacking(
            f"{to.parent} can't hold what is fetched", expected="a writable folder with room",
            got=error.strerror or str(error),
            remedy="Make room or fix the permissions, then run the same command again",
        ) from error  # fmt: skip


def missing_object(digest: Digest, location: str) -> StoreFailed:
    """Return the refusal for an object that is not there."""
    return StoreFailed(
        f"an object is not in the store {location}", expected=f"the object {digest.short}",
        got="none", remedy="Is HANDOFF_STORE the store that the release was made with?",
    )  # fmt: skip


def corrupted_object(digest: Digest, found: str, location: str) -> StoreFailed:
    """Return the refusal for an object whose bytes are others."""
    return StoreFailed(
        f"an object in {location} is not what its digest says", expected=digest.short,
        got=found, remedy="Don't use it: remove that object and release again",
    )  # fmt: skip
