"""SHA-256 digests of bytes, files and folders, written `sha256:<64 hexadecimal digits>`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from io import BufferedIOBase
from pathlib import Path

_CHUNK_BYTES = 8 << 20
_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")


class Digest(str):
    """A SHA-256 digest; a string, so that it sorts, hashes and serialises as one."""

    __slots__ = ()

    def __new__(cls, text: str) -> Digest:
        """Check the form and return the digest; raise `ValueError` for anything else."""
        if not _PATTERN.fullmatch(text):
            raise ValueError(f"expected 'sha256:' and 64 hexadecimal digits, got {text[:90]!r}")
        return super().__new__(cls, text)

    @property
    def hex(self) -> str:
        """The 64 hexadecimal digits alone."""
        return self[7:]

    @property
    def short(self) -> str:
        """The first 12 hexadecimal digits, for people."""
        return self[7:19]


def digest_bytes(data: bytes) -> Digest:
    """Return the digest of `data`."""
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


def digest_file(path: Path) -> Digest:
    """Return the digest of a file's bytes, read in pieces."""
    with path.open("rb") as stream:
        return digest_stream(stream)


def digest_stream(stream: BufferedIOBase) -> Digest:
    """Return the digest of what is left of a stream, read in pieces."""
    return Digest("sha256:" + hashlib.file_digest(stream, "sha256").hexdigest())


def digest_span(path: Path, start: int, size: int) -> Digest:
    """Return the digest of `size` bytes of a file from `start` on, or of as many as there are."""
    hasher = hashlib.sha256()
    with path.open("rb") as stream:
        stream.seek(start)
        while size and (data := stream.read(min(size, _CHUNK_BYTES))):
            hasher.update(data)
            size -= len(data)
    return Digest("sha256:" + hasher.hexdigest())


def digest_tree(files: Mapping[str, Digest]) -> Digest:
    """Return the digest of a folder, given each file's relative path and digest.

    The digest is that of the lines `<hex>  <path>` sorted by path, each ended by a newline: what
    `sha256sum` prints for the same files, so that it can be checked without this project.
    """
    lines = "".join(f"{files[name].hex}  {name}\n" for name in sorted(files))
    return digest_bytes(lines.encode())


def digest_folder(folder: Path) -> Digest:
    """Return the digest of every regular file below `folder`, as `digest_tree` defines it."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return digest_tree({p.relative_to(folder).as_posix(): digest_file(p) for p in paths})
