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
from artifacts.steps import AssumedRange
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


def find_entry(cache: Path, key: Digest) -> tuple[CacheEntry, Path] | None:
    """Return the entry and its package, or None where there is none that is whole."""
    folder = cache / key.hex
    try:
        plain = json.loads((folder / _ENTRY_FILE).read_text(encoding="utf-8"))
        entry = from_plain(CacheEntry, plain)
        whole = digest_file(folder / _PACKAGE_FILE) == entry.package
    except (OSError, ValueError, RecordInvalid):
        return None
    if not whole:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    (folder / _ENTRY_FILE).touch()
    return entry, folder / _PACKAGE_FILE


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
