"""Unpack an archive (tar, tar.gz, zip) of which nothing is believed.

Only regular files and folders with plain relative names are written, with modes of our own. What
an archive expands to is counted while it is written, never taken from what its headers say, and
no header is read that would fill the memory: `tarfile` and `zipfile` read those whole.
"""

from __future__ import annotations

import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

from handoff.artifacts.errors import DeliveryUnreadable
from handoff.tasks.fetch.budget import Budget, refuse_kind

_CHUNK_BYTES = 1 << 20
_MAX_READ_BYTES = 16 << 20
_REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE)
# What tarfile and zipfile raise for archives that are cut, damaged or forged.
_ARCHIVE_ERRORS = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError,
    RuntimeError, OverflowError, KeyError, IndexError,
)  # fmt: skip


def unpack(archive: Path, folder: Path, budget: Budget) -> Path:
    """Write what `archive` holds into the new `folder`; return the folder of the delivery.

    That is `folder`, or the only thing in it where that is a folder. Raises `DeliveryUnreadable`.
    """
    folder.mkdir()
    try:
        with archive.open("rb") as stream:
            head = stream.read(262)
        if head.startswith(b"\x1f\x8b"):
            plain = archive.with_name(f"{archive.name}.plain")
            _inflate(archive, plain, budget)
            _write_all(_tar_files(plain), folder, budget)
        elif head.startswith(b"PK\x03\x04"):
            _write_all(_zip_files(archive), folder, budget)
        elif head[257:262] == b"ustar":
            _write_all(_tar_files(archive), folder, budget)
        else:
            raise _refuse("a .tar, .tar.gz or .zip archive", "something else")
    except _ARCHIVE_ERRORS as error:
        raise _refuse("a whole archive", f"{type(error).__name__}: {str(error)[:120]}") from error
    entries = list(folder.iterdir())
    return entries[0] if len(entries) == 1 and entries[0].is_dir() else folder


# An entry: its name, and its bytes, or None for a folder.
_Entry = tuple[str, IO[bytes] | None]


def _write_all(entries: Iterable[_Entry], folder: Path, budget: Budget) -> None:
    folders = {""}
    for count, (name, stream) in enumerate(entries):
        if count > 2 * budget.limits.files:
            raise _refuse(f"at most {2 * budget.limits.files} entries", "more")
        if stream is None:
            # Folders may be listed again, and after what is in them.
            if name not in folders and not (folder / name).is_dir():
                (folder / budget.take_name(name, "folder")).mkdir(parents=True)
            folders.add(name)
            continue
        path = folder / budget.take_name(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as target:
            while chunk := stream.read(_CHUNK_BYTES):
                budget.take_bytes(len(chunk))
                target.write(chunk)


def _tar_files(archive: Path) -> Iterator[_Entry]:
    with archive.open("rb") as stream:
        bounded = cast(BinaryIO, _BoundedReader(stream, archive.stat().st_size))
        with tarfile.open(fileobj=bounded, mode="r:", encoding="utf-8", errors="strict") as tar:
            for member in tar:
                name = _normalise_name(member.name)
                if member.size < 0:
                    raise _refuse("sizes of at least zero", str(member.size))
                if member.isdir():
                    yield name, None
                elif member.type in _REGULAR and not member.issparse():
                    data = tar.extractfile(member)
                    assert data is not None
                    yield name, data
                else:
                    raise refuse_kind(name, _describe_kind(member))


def _describe_kind(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "a link"
    return "a sparse file" if member.issparse() else "a device, a pipe or something unknown"


def _zip_files(archive: Path) -> Iterator[_Entry]:
    with archive.open("rb") as stream:
        bounded = cast(BinaryIO, _BoundedReader(stream, archive.stat().st_size))
        with zipfile.ZipFile(bounded) as packed:
            for member in packed.infolist():
                name = _normalise_name(member.orig_filename)
                kind = stat.S_IFMT(member.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise refuse_kind(name, "a link" if kind == stat.S_IFLNK else "a device")
                if member.is_dir() or kind == stat.S_IFDIR:
                    yield name, None
                    continue
                if member.flag_bits & 1 or member.compress_type not in (0, 8):
                    raise _refuse("files that are stored or deflated", f"{name[:80]!a} otherwise")
                with packed.open(member) as data:
                    yield name, data


def _normalise_name(name: str) -> str:
    """Return an entry's name without the './' that tar begins with; empty for '.' itself."""
    return name.removeprefix("./").removesuffix("/") if name not in (".", "./") else ""


def _inflate(packed: Path, plain: Path, budget: Budget) -> None:
    """Write what a gzip file holds; the tar's own headers may add a tenth and a megabyte."""
    limit = budget.limits.size_bytes + budget.limits.size_bytes // 10 + (1 << 20)
    size = 0
    with packed.open("rb") as stream, plain.open("xb") as target:
        inflater = zlib.decompressobj(wbits=31)
        data = stream.read(_CHUNK_BYTES)
        while data:
            chunk = inflater.decompress(data, _CHUNK_BYTES)
            size += len(chunk)
            budget.remaining_s()
            if size > limit:
                budget.require_room(size)
                raise _refuse(f"at most {limit} bytes", "more")
            target.write(chunk)
            data = inflater.unconsumed_tail
            if inflater.eof:
                # Files may follow one another in a gzip file, and zeros may end it.
                data = (inflater.unused_data or stream.read(_CHUNK_BYTES)).lstrip(b"\0")
                if data:
                    inflater = zlib.decompressobj(wbits=31)
            data = data or stream.read(_CHUNK_BYTES)
    if not inflater.eof:
        raise EOFError("the compressed file is cut")


class _BoundedReader:
    """A file of which no more is read than can be needed, and never much at once.

    A forged header makes `tarfile` read gigabytes for a name, or the same place for ever.
    """

    def __init__(self, stream: BinaryIO, size: int) -> None:
        """Read from `stream`, whose size is in bytes."""
        self._stream = stream
        self._remaining = 4 * size + (64 << 20)

    def read(self, size: int = -1) -> bytes:
        """Read at most 16 MiB."""
        if size is None or size < 0:
            position = self._stream.tell()
            size = self._stream.seek(0, 2) - position
            self._stream.seek(position)
        self._remaining -= size + 1
        if size > _MAX_READ_BYTES or self._remaining < 0:
            raise _refuse("headers of a usual size", f"one that reads {size} bytes")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place in the file."""
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        """Return the place in the file."""
        return self._stream.tell()

    def seekable(self) -> bool:
        """Say that places can be gone to."""
        return True

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    @property
    def closed(self) -> bool:
        """Return whether the file is closed."""
        return self._stream.closed


def _refuse(expected: str, got: str) -> DeliveryUnreadable:
    return DeliveryUnreadable(
        "the archive can't be unpacked", expected=expected, got=got,
        remedy="Pack the delivery again: tar czf delivery.tar.gz -C FOLDER .",
    )  # fmt: skip
