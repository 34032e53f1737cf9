"""Verify: what a store's records name has to be there, each object with its digest's bytes."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.digest import Digest, digest_file
from handoff.artifacts.errors import PackageRefused, StoreFailed
from handoff.artifacts.release.releases import Releases
from handoff.artifacts.stores.objects import object_key
from handoff.artifacts.stores.store import Store, StoredKey
from handoff.tasks.registry.upkeep.collect import kept_versions, objects_of, stored_objects

_AT_ONCE = 4


@dataclass(frozen=True)
class StoreDefect:
    """Something that isn't as it should be: of which versions, and what.

    `object` is the digest of the object that is missing or is another one; '' where it is a ledger
    or a record that can't be relied on.
    """

    versions: tuple[str, ...]
    object: str
    what: str


@dataclass(frozen=True)
class CheckResult:
    """How many models, versions and objects were looked at, their bytes, and what is wrong."""

    models: int
    versions: int
    objects: int
    bytes: int
    lacking: tuple[StoreDefect, ...]


def verify_store(
    releases: Releases, *, quick: bool, progress: Callable[[str, int, int], None]
) -> CheckResult:
    """Verify every ledger and record, and each object that they name.

    With `quick` an object counts by what the store says of it, as far as it keeps checksums; else
    its bytes are read. Raises `StoreFailed` for a store that can't be asked.
    """
    users, versions, problems = _collect_references(releases)
    stored = stored_objects(releases.store)
    present = [digest for digest in users if object_key(digest) in stored]
    problems += [
        StoreDefect(tuple(users[digest]), str(digest), "is not there")
        for digest in users if object_key(digest) not in stored
    ]  # fmt: skip
    problems += [
        StoreDefect(tuple(users[digest]), str(digest), f"is {found}")
        for digest, found in _find_corrupt(
            releases.store, present, stored, quick=quick, progress=progress
        )
    ]
    size_bytes = sum(stored[object_key(digest)].size_bytes for digest in present)
    return CheckResult(len(releases.models()), versions, len(users), size_bytes, tuple(problems))


def _collect_references(
    releases: Releases,
) -> tuple[dict[Digest, list[str]], int, list[StoreDefect]]:
    """Return who names each object, how many versions there are, and what can't be read of them."""
    users: dict[Digest, list[str]] = defaultdict(list)
    versions, problems = 0, []
    for model in releases.models():
        try:
            pointers = kept_versions(releases.entries(model))
        except (PackageRefused, StoreFailed) as error:
            problems.append(StoreDefect((model,), "", str(error)))
            continue
        for pointer in pointers:
            versions += 1
            name = f"{model}@{pointer.version}"
            try:
                for digest in dict.fromkeys(objects_of(releases, model, pointer)):
                    users[digest].append(name)
            except (PackageRefused, StoreFailed) as error:
                problems.append(StoreDefect((name,), "", str(error)))
    return users, versions, problems


def _find_corrupt(
    store: Store,
    present: Sequence[Digest],
    stored: Mapping[str, StoredKey],
    *,
    quick: bool,
    progress: Callable[[str, int, int], None],
) -> list[tuple[Digest, str]]:
    """Return the objects whose bytes aren't what their digest says, and what was found."""
    total = sum(stored[object_key(digest)].size_bytes for digest in present)

    def check(digest: Digest) -> str:
        key = object_key(digest)
        if quick:
            found = "" if store.matches(key, digest.hex) else "another one, as the store says"
        else:
            file = Path(scratch) / digest.hex
            store.download(key, file)
            is_same = digest_file(file) == digest
            found = "" if is_same else f"another one: {digest_file(file).short}"
            file.unlink()
        progress("read", stored[key].size_bytes, total)
        return found

    with (
        tempfile.TemporaryDirectory(prefix="handoff-check-") as scratch,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        found = list(pool.map(check, present))
    return [(digest, what) for digest, what in zip(present, found, strict=True) if what]
