"""A released file is read once: what was compared with its digest is what is used.

`seal_file` copies it into memory that nobody can write to any more (memfd_create(2), with the seals
of fcntl(2)), so that a file that is changed on the disk between the check and the use changes
nothing.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import EnvironmentLacking, PackageRefused
from handoff.artifacts.release.manifest import PackageFile

_PIECE_BYTES = 1 << 20
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

_kept_copies: dict[Digest, int] = {}
_lock = threading.Lock()


def read_record(path: Path, limit: int) -> bytes:
    """Return a small file's bytes, read once; raise `OSError` for none, and for a link to one.

    Raises `PackageRefused` for anything but a file, and for more than `limit` bytes.
    """
    with os.fdopen(_open_plain(path), "rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise PackageRefused(
            f"{path.name} is not what a release holds", expected=f"at most {limit} bytes",
            got="more", remedy="Don't use it: pull the release again into a new folder",
        )  # fmt: skip
    return data


def check_file(folder: Path, file: PackageFile) -> None:
    """Raise `PackageRefused` unless the file in `folder` has the released size and digest."""
    _read_verified(folder, file, lambda _: None)


def seal_file(folder: Path, file: PackageFile, *, hold: bool) -> int:
    """Return a descriptor of a sealed copy of the file in `folder`, which is as it was released.

    With `hold` it is never closed, and the same bytes have the same one: what dlopen has loaded by
    a descriptor's name stays under that name. Else the caller closes it. Raises `PackageRefused`
    for another size or digest, and `EnvironmentLacking` where there is no memory for a copy.
    """
    try:
        copy = os.memfd_create(Path(file.path).name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise _out_of_memory(file, error) from error
    try:
        _read_verified(folder, file, lambda piece: _write(copy, piece, file))
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(copy)
        raise
    return keep_sealed(file.digest, copy) if hold else copy


def keep_sealed(digest: Digest, copy: int) -> int:
    """Return the descriptor that the bytes of `digest` are kept by for good; `copy` where none is.

    Else the sealed `copy` is closed.
    """
    with _lock:
        kept = _kept_copies.setdefault(digest, copy)
    if kept != copy:
        os.close(copy)
    return kept


def _read_verified(folder: Path, file: PackageFile, use: Callable[[memoryview], None]) -> None:
    """Hand every piece of the file to `use`; the digest is known when all of them were."""
    try:
        descriptor = _open_plain(folder / file.path)
    except FileNotFoundError as error:
        raise _changed_file(file, "a file", "nothing") from error
    except OSError as error:
        raise _changed_file(file, "a file", "something else") from error
    buffer = memoryview(bytearray(min(_PIECE_BYTES, file.size_bytes + 1)))
    digest, size = hashlib.sha256(), 0
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        actual_size = os.fstat(descriptor).st_size
        if actual_size != file.size_bytes:
            raise _changed_file(file, f"{file.size_bytes} bytes", f"{actual_size} bytes")
        while size <= file.size_bytes and (count := stream.readinto(buffer)):
            digest.update(buffer[:count])
            use(buffer[:count])
            size += count
    actual = Digest("sha256:" + digest.hexdigest())
    if actual != file.digest:
        raise _changed_file(file, f"the digest {file.digest.short}", actual.short)


def _open_plain(path: Path) -> int:
    """Open a regular file that isn't behind a link; what would block (a pipe) is refused, too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file")
    return descriptor


def _write(copy: int, piece: memoryview, file: PackageFile) -> None:
    try:
        while piece:
            piece = piece[os.write(copy, piece) :]
    except OSError as error:
        raise _out_of_memory(file, error) from error


def _out_of_memory(file: PackageFile, error: OSError) -> EnvironmentLacking:
    return EnvironmentLacking(
        f"{file.path} can't be copied into memory", expected=f"room for {file.size_bytes} bytes",
        got=error.strerror or str(error), remedy="Raise this process's limits of memory",
    )  # fmt: skip


def _changed_file(file: PackageFile, expected: str, got: str) -> PackageRefused:
    return PackageRefused(
        f"{file.path} is not the file that was released", expected=expected, got=got,
        remedy="Don't load it: pull the release again into a new folder",
    )  # fmt: skip
