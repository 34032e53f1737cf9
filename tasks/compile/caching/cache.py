"""The cache of compiled packages: one entry for each compilation key.

An entry is a library, the package around it, and the digests of both, which are checked before it
is used. Weights that can be put in again (`tasks.compile.weights`) are not kept: in their places
the library has holes, so that an entry takes as much of the disk as its code does. What is taken
from here is verified like what was just compiled.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from handoff.artifacts.digest import Digest, digest_file
from handoff.artifacts.files.locks import held
from handoff.artifacts.files.new_folder import replace_folder, scratch_folder
from handoff.artifacts.files.strict_json import parse_json
from handoff.artifacts.record import RecordInvalid, from_plain, to_plain
from handoff.tasks.compile.caching.package_cache import ENTRY_FILE
from handoff.tasks.compile.messages import AssumedRange, Reused
from handoff.tasks.compile.packages import write_package, write_shell
from handoff.tasks.compile.weights import WeightSlot, copy_code, put_weights
from handoff.tasks.verify.loading import PACKAGE, SHARED_LIBRARY

_FILES = (SHARED_LIBRARY, PACKAGE)


@dataclass(frozen=True)
class Compiled:
    """What is to be told of a compiled package: its weights, where they lie, what was assumed.

    `weights` are the digests of the program's; without `slots` they are part of the code.
    `atomic_sums` are its functions that add in an order that threads decide.
    """

    weights: dict[str, str]
    slots: tuple[WeightSlot, ...]
    assumed: tuple[AssumedRange, ...]
    atomic_sums: tuple[str, ...]


@dataclass(frozen=True)
class CacheEntry:
    """A compiled package, and the digests of the entry's files."""

    compiled: Compiled
    files: dict[str, Digest]

    @property
    def code(self) -> Digest:
        """The digest of the library with holes where weights belong: that of its code."""
        return self.files[SHARED_LIBRARY]


def read_entry(cache: Path, key: Digest) -> CacheEntry | None:
    """Return the entry, and leave everything as it is; None where there is none that is whole."""
    entry = _parse(cache / key.hex)
    return entry if entry and _is_whole(cache / key.hex, entry) else None


def find_entry(cache: Path, key: Digest) -> CacheEntry | None:
    """Return the entry, or None where there is none that is whole.

    It counts as used now; one whose files aren't whole is removed. Whoever goes on to take it holds
    the cache meanwhile (`artifacts.files.locks.held`), so that no other process drops it.
    """
    folder = cache / key.hex
    entry = _parse(folder)
    if entry is None:
        return None
    if not _is_whole(folder, entry):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    (folder / ENTRY_FILE).touch()
    return entry


def take_entry(
    cache: Path, key: Digest, entry: CacheEntry, tensors: Mapping[str, torch.Tensor], to: Path
) -> None:
    """Write the entry's library with these tensors, and the package around it, to the folder."""
    folder, slots = cache / key.hex, entry.compiled.slots
    copy_code(folder / SHARED_LIBRARY, slots, to / SHARED_LIBRARY)
    put_weights(slots, tensors, to / SHARED_LIBRARY)
    write_package(folder / PACKAGE, to / SHARED_LIBRARY, to / PACKAGE)


def _parse(folder: Path) -> CacheEntry | None:
    try:
        plain = parse_json((folder / ENTRY_FILE).read_bytes())
        return from_plain(CacheEntry, plain)
    except (OSError, ValueError, RecordInvalid):
        return None


def _is_whole(folder: Path, entry: CacheEntry) -> bool:
    try:
        return all(digest_file(folder / name) == entry.files[name] for name in _FILES)
    except (OSError, KeyError):
        return False


def reusable(entry: CacheEntry, weights: dict[str, str]) -> Reused:
    """Return what of an entry a program with these weights can take."""
    if weights == entry.compiled.weights:
        return "package"
    return "code" if entry.compiled.slots else ""


def keep_entry(cache: Path, key: Digest, package: Path, compiled: Compiled) -> CacheEntry:
    """Keep what the folder `package` holds, whole or not at all, in the place of an earlier one."""
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    with scratch_folder(cache, ".entry-") as building:
        copy_code(package / SHARED_LIBRARY, compiled.slots, building / SHARED_LIBRARY)
        write_shell(package / PACKAGE, building / PACKAGE)
        entry = CacheEntry(compiled, {name: digest_file(building / name) for name in _FILES})
        (building / ENTRY_FILE).write_text(json.dumps(to_plain(entry)), encoding="utf-8")
        with held(cache):
            replace_folder(building, cache / key.hex)
    return entry
