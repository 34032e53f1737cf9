"""The cache of compiled packages: one entry for each compilation key.

An entry is a package, where its weights lie, and the digests of all of it, which are checked before
it is used. What is taken from here is verified like what was just compiled.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from artifacts.digest import Digest, digest_file
from artifacts.record import RecordInvalid, from_plain, to_plain
from artifacts.steps import AssumedRange, Reused
from tasks.compiling.weights import WeightSlot

_ENTRY_FILE = "entry.json"
_PACKAGE_FILE = "model.pt2"
# Entries beyond this go, those that were not used for longest first.
_MAX_BYTES = 8 << 30


@dataclass(frozen=True)
class CacheEntry:
    """A compiled package: its digest, its weights and where they lie, what was assumed."""

    package: Digest
    weights: dict[str, str]
    slots: tuple[WeightSlot, ...]
    assumed: tuple[AssumedRange, ...]


def read_entry(cache: Path, key: Digest) -> CacheEntry | None:
    """Return the entry, and leave everything as it is; None where there is none that is whole."""
    entry = _parse(cache / key.hex)
    return entry if entry and _is_whole(cache / key.hex, entry) else None


def find_entry(cache: Path, key: Digest) -> tuple[CacheEntry, Path] | None:
    """Return the entry and its package, or None where there is none that is whole.

    It counts as used now; one whose package isn't whole is removed.
    """
    folder = cache / key.hex
    entry = _parse(folder)
    if entry is None:
        return None
    if not _is_whole(folder, entry):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    (folder / _ENTRY_FILE).touch()
    return entry, folder / _PACKAGE_FILE


def _parse(folder: Path) -> CacheEntry | None:
    try:
        plain = json.loads((folder / _ENTRY_FILE).read_text(encoding="utf-8"))
        return from_plain(CacheEntry, plain)
    except (OSError, ValueError, RecordInvalid):
        return None


def _is_whole(folder: Path, entry: CacheEntry) -> bool:
    try:
        return digest_file(folder / _PACKAGE_FILE) == entry.package
    except OSError:
        return False


def reusable(entry: CacheEntry, weights: dict[str, str]) -> Reused:
    """Return what of an entry a program with these weights can take."""
    if weights == entry.weights:
        return "package"
    return "code" if entry.slots else ""


def keep_entry(cache: Path, key: Digest, package: Path, entry: CacheEntry) -> None:
    """Keep a copy of a package, whole or not at all, in the place of an earlier one."""
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    building = Path(tempfile.mkdtemp(prefix=".entry-", dir=cache))
    try:
        shutil.copyfile(package, building / _PACKAGE_FILE)
        (building / _ENTRY_FILE).write_text(json.dumps(to_plain(entry)), encoding="utf-8")
        shutil.rmtree(cache / key.hex, ignore_errors=True)
        building.rename(cache / key.hex)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    _drop_old(cache)


def _drop_old(cache: Path) -> None:
    entries = [path for path in cache.iterdir() if (path / _ENTRY_FILE).exists()]
    entries.sort(key=lambda path: (path / _ENTRY_FILE).stat().st_mtime, reverse=True)
    total = 0
    for path in entries:
        total += sum(file.stat().st_size for file in path.iterdir())
        if total > _MAX_BYTES:
            shutil.rmtree(path, ignore_errors=True)
