"""The store in a folder: read-only files, each of which appears whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from handoff.artifacts.digest import digest_file
from handoff.artifacts.errors import StoreFailed, StoreUnreachable
from handoff.artifacts.files.writing import UnfinishedFiles, flush
from handoff.artifacts.stores.store import (
    Guarantees,
    Progress,
    StoredKey,
    changed_file,
    missing_key,
    oversized_key,
    require_key,
)

_CHUNK_BYTES = 8 << 20
# No key's name begins with a dot.
_TEMPORARY = ".unfinished"


class FolderStore:
    """Keys as read-only files below a folder."""

    def __init__(self, root: Path) -> None:
        """Use `root`, which is made when the first key is written."""
        self.root = root
        self._unfinished = UnfinishedFiles(root / _TEMPORARY)

    @property
    def location(self) -> str:
        """The folder's path."""
        return str(self.root)

    def create(self, key: str, data: bytes) -> bool:
        """Write a new key; return whether it holds `data` now, or something else stood there."""
        path = self._path(key)
        with self._temporary_file() as (partial, stream):
            stream.write(data)
            _finish(stream)
            try:
                # A link is refused where the name is taken; a rename would replace it.
                _publish(lambda: os.link(partial, path), path)
            except FileExistsError:
                return path.read_bytes() == data
            flush(path.parent)
        return True

    def replace(self, key: str, data: bytes) -> None:
        """Write a key, whatever it held; a reader sees the old bytes or the new ones, whole."""
        path = self._path(key)
        with self._temporary_file() as (partial, stream):
            stream.write(data)
            _finish(stream)
            _publish(lambda: partial.replace(path), path)
            flush(path.parent)

    def read(self, key: str, limit: int) -> bytes | None:
        """Return the bytes of a key, at most `limit`; None where it isn't there."""
        if self.stat(key) is None:
            return None
        with self._translate_errors("give back a key"), self._path(key).open("rb") as stream:
            data = stream.read(limit + 1)
        if len(data) > limit:
            raise oversized_key(key, self.location, limit)
        return data

    def upload(
        self, key: str, path: Path, size: int, sha256: str,
        progress: Progress | None = None, *, at: int = 0,
    ) -> None:  # fmt: skip
        """Write `size` bytes of a file, from `at` on, to a key; refuse unless `sha256` is theirs.

        What is compared is read back from the copy.
        """
        final = self._path(key)
        with self._temporary_file() as (partial, stream), path.open("rb") as source:
            source.seek(at)
            _copy(source, stream, size, progress)
            _finish(stream)
            if digest_file(partial).hex != sha256:
                raise changed_file(path)
            _publish(lambda: partial.replace(final), final)
            flush(final.parent)

    def download(
        self, key: str, to: Path, progress: Progress | None = None, *, at: int = 0
    ) -> None:
        """Write the key's bytes into the file `to` from `at` on, and cut it behind them."""
        if self.stat(key) is None:
            raise missing_key(key, self.location)
        with self._translate_errors("give back a key"):
            source = self._path(key).open("rb")
        with source, to.open("r+b" if to.exists() else "w+b") as stream:
            size = source.seek(0, os.SEEK_END)
            present = min(max(stream.seek(0, os.SEEK_END) - at, 0), size)
            source.seek(present)
            stream.seek(at + present)
            if progress is not None and present:
                progress(present)
            _copy(source, stream, size - present, progress)
            stream.truncate(at + size)

    def stat(self, key: str) -> StoredKey | None:
        """Return a key's size and time; None where it isn't there."""
        with self._translate_errors("be asked for a key"):
            return self._stat_path(self._path(key))

    def matches(self, key: str, sha256: str) -> bool:
        """Return whether the key's bytes, which are read, have this digest."""
        if self.stat(key) is None:
            return False
        with self._translate_errors("give back a key"):
            return digest_file(self._path(key)).hex == sha256

    def keys(self, prefix: str, after: str = "") -> Iterator[StoredKey]:
        """Give every key that begins with `prefix` and is larger than `after`, in no order."""
        for key in self._walk_keys(prefix.rpartition("/")[0]):
            if key > after and key.startswith(prefix):
                # One that was removed since the folder was listed is no key any more.
                stored = self._stat_path(self.root / key)
                if stored is not None:
                    yield stored

    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names below `prefix`, up to the next slash, sorted."""
        with (
            self._translate_errors("list its keys"), suppress(FileNotFoundError),
            os.scandir(self.root / prefix) as entries,
        ):  # fmt: skip
            return tuple(
                sorted(
                    entry.name for entry in entries if entry.is_dir() and entry.name != _TEMPORARY
                )
            )
        return ()

    def remove(self, key: str) -> None:
        """Remove a key; one that isn't there is fine."""
        with self._translate_errors("remove a key"):
            self._path(key).unlink(missing_ok=True)

    def abandon_uploads(self, older_than: datetime) -> int:
        """Remove temporary files last written before `older_than`; return how many."""
        with self._translate_errors("remove a temporary file"):
            return self._unfinished.abandon(older_than)

    def check(self) -> Guarantees:
        """Write, read and remove a key below `selftest/`; return what the folder guarantees."""
        key = f"selftest/{uuid.uuid4().hex}"
        path = self._path(key)
        try:
            first, second = self.create(key, b"one"), self.create(key, b"two")
            if not first or self.read(key, 3) != b"one":
                raise self._failure("a folder that gives back what it was given", "other bytes")
            wrong = hashlib.sha256(b"other").hexdigest()
            try:
                self.upload(f"{key}.damaged", path, 3, wrong)
            except StoreFailed:
                checksums = True
            else:
                checksums = False
                self.remove(f"{key}.damaged")
        finally:
            self.remove(key)
            with suppress(OSError):  # another's self-test is there, or the folder was never made
                path.parent.rmdir()
        return Guarantees(conditional_writes=not second, checksums=checksums)

    def _path(self, key: str) -> Path:
        return self.root / require_key(key)

    def _walk_keys(self, folder: str) -> Iterator[str]:
        """Give the keys of all files below a folder.

        Their names alone: a path made of each would cost ten times as much, and a ledger of years
        has thousands, of which the last is asked for.
        """
        root = str(self.root)
        for parent, folders, names in os.walk(self._path(folder) if folder else root):
            with suppress(ValueError):
                folders.remove(_TEMPORARY)
            base = Path(parent).relative_to(root).as_posix()
            prefix = "" if base == "." else f"{base}/"
            for name in names:
                yield prefix + name

    def _stat_path(self, path: Path) -> StoredKey | None:
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not S_ISREG(status.st_mode):
            return None
        modified = datetime.fromtimestamp(status.st_mtime, UTC)
        return StoredKey(path.relative_to(self.root).as_posix(), status.st_size, modified)

    @contextmanager
    def _temporary_file(self) -> Iterator[tuple[Path, BinaryIO]]:
        """Give a temporary file on the same disk, which is gone when the body ends."""
        with self._translate_errors("keep a key"), self._unfinished.open() as unfinished:
            yield unfinished

    @contextmanager
    def _translate_errors(self, what: str) -> Iterator[None]:
        """Turn what the system raises into a sentence."""
        try:
            yield
        except OSError as error:
            got = error.strerror or str(error)
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.EXDEV):
                got += " (has this file system hard links?)"
            raise self._failure("a writable folder with room for it", got, what) from error

    def _failure(self, expected: str, got: str, what: str = "keep a key") -> StoreUnreachable:
        return StoreUnreachable(
            f"the store {self.root} can't {what}", expected=expected, got=got,
            remedy="Make room or fix the permissions, then run the same command again",
        )  # fmt: skip


def _publish(give_name: Callable[[], object], final: Path) -> None:
    """Give a file its final name, in a folder that is made where it isn't there."""
    # The folder may be removed, being empty, between the two calls: by another's self-test.
    for _ in range(8):
        final.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            give_name()
            return
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(final.parent))


def _copy(source: BinaryIO, to: BinaryIO, size: int, progress: Progress | None) -> None:
    while size and (data := source.read(min(size, _CHUNK_BYTES))):
        to.write(data)
        size -= len(data)
        if progress is not None:
            progress(len(data))


def _finish(stream: BinaryIO) -> None:
    stream.flush()
    os.fchmod(stream.fileno(), 0o444)
    os.fsync(stream.fileno())
