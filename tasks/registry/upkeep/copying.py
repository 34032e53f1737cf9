"""Copy: all that a store's ledgers keep, into another store, checked on its way.

Objects come first, then what nights and toolchains left, and each model's ledger last: until its
next entry is there, nothing of what was copied is seen by readers of that store. The next one
resumes a copy that was interrupted, and copies only what lacks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.conformance.keeping import CONFORMANCE
from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.release.layout import NIGHTS
from handoff.artifacts.release.releases import Releases
from handoff.artifacts.stores.objects import missing_object, object_key
from handoff.artifacts.stores.store import Store, Stored
from handoff.tasks.registry.upkeep.contents import held_objects, objects_of
from handoff.tasks.registry.upkeep.histories import (
    History,
    compare_history,
    require_same_histories,
    write_history,
)

# Called with what is done (`look`, `copy`), the bytes since the last call, and the bytes in all.
Told = Callable[[str, int, int], None]

_AT_ONCE = 8
_RECORD_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class Copied:
    """What was copied, or with `pretend` would be; `there` are objects that need not be.

    `records` are those of nights and of toolchains' tables; `differing` are the keys of those that
    the other store has with other bytes, which stay. `ahead` are models whose ledger has gone on
    there.
    """

    models: tuple[str, ...]
    objects: int
    bytes: int
    there: int
    entries: int
    records: int
    differing: tuple[str, ...]
    ahead: tuple[str, ...]


def copy_store(
    source: Releases, target: Releases, *, replaces: bool, pretend: bool, told: Told
) -> Copied:
    """Copy what the ledgers of `source` keep into the store of `target`.

    Raises `StoreFailed` where the ledgers there have another history, unless one `replaces` them,
    and where an object of `source` isn't what its digest says; `PackageRefused` for a ledger that
    isn't verified.
    """
    models = source.models()
    if not models:
        raise UsageProblem(
            "there is nothing to copy", expected=f"a store with models at {source.store.location}",
            got="none", remedy="Name the store that 'handoff list' shows; HANDOFF_STORE says where",
        )  # fmt: skip
    histories = [compare_history(source, target.store, model) for model in models]
    if not replaces:
        require_same_histories(histories, source.store, target.store)
    needed = _needed(source, histories)
    lacking = _lacking(source.store, target.store, needed, told)
    records, differing = _records(source.store, target.store)
    if not pretend:
        _copy_objects(source, target, lacking, told)
        # Whoever collects garbage there may have taken what nothing names yet.
        _copy_objects(source, target, _gone(target.store, needed, source.store), told)
        for key in records:
            _copy_record(source.store, target.store, key)
        for history in histories:
            write_history(source, target, history)
    return Copied(
        models, len(lacking), sum(one.size_bytes for one in lacking),
        len(needed) - len(lacking), sum(len(one.lacking) for one in histories),
        len(records), differing,
        tuple(one.model for one in histories if one.beyond and not one.is_other),
    )  # fmt: skip


def _needed(source: Releases, histories: Iterable[History]) -> tuple[Digest, ...]:
    """Return what the versions consist of, but for models that have gone on in the other store."""
    return tuple(
        dict.fromkeys(
            digest
            for history in histories
            if history.lacking or not history.beyond
            for pointer in history.versions
            for digest in objects_of(source, history.model, pointer)
        )
    )


def _lacking(
    source: Store, target: Store, needed: Iterable[Digest], told: Told
) -> tuple[Stored, ...]:
    """Return what `source` says of the objects that `target` lacks, or has with other bytes."""
    held, there = held_objects(source), held_objects(target)
    wanted = [_stored(held, digest, source) for digest in needed]
    same = [
        one for one in wanted
        if one.key in there and there[one.key].size_bytes == one.size_bytes
    ]  # fmt: skip
    total = sum(one.size_bytes for one in same)

    def is_whole(one: Stored) -> bool:
        found = target.matches(one.key, one.key.rpartition("/")[2])
        told("look", one.size_bytes, total)
        return found

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        whole = {
            one.key for one, found in zip(same, pool.map(is_whole, same), strict=True) if found
        }
    return tuple(one for one in wanted if one.key not in whole)


def _gone(target: Store, needed: Iterable[Digest], source: Store) -> tuple[Stored, ...]:
    there = held_objects(target)
    gone = [digest for digest in needed if object_key(digest) not in there]
    if not gone:
        return ()
    held = held_objects(source)
    return tuple(_stored(held, digest, source) for digest in gone)


def _stored(held: dict[str, Stored], digest: Digest, source: Store) -> Stored:
    found = held.get(object_key(digest))
    if found is None:
        raise missing_object(digest, source.location)
    return found


def _copy_objects(
    source: Releases, target: Releases, lacking: tuple[Stored, ...], told: Told
) -> None:
    total = sum(one.size_bytes for one in lacking)

    def copy(one: Stored) -> None:
        digest = Digest(f"sha256:{one.key.rpartition('/')[2]}")
        file = Path(scratch) / digest.hex
        # Verified before it goes on, and again as it arrives.
        source.objects.fetch(digest, file)
        target.store.upload(one.key, file, one.size_bytes, digest.hex)
        file.unlink()
        told("copy", one.size_bytes, total)

    with (
        tempfile.TemporaryDirectory(prefix="handoff-copy-") as scratch,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        for done in [pool.submit(copy, one) for one in lacking]:
            done.result()


def _records(source: Store, target: Store) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the records that `target` lacks, in the order to write them, and those it has others.

    What others lead to comes first: a night's rows before the night, a signature before its table.
    """
    lacking, differing = [], []
    for prefix in (NIGHTS, CONFORMANCE):
        keys = sorted((one.key for one in source.keys(prefix)), key=lambda k: (-k.count("/"), k))
        for key in keys:
            there = target.read(key, _RECORD_LIMIT_BYTES)
            if there is None:
                lacking.append(key)
            elif there != source.read(key, _RECORD_LIMIT_BYTES):
                differing.append(key)
    return tuple(lacking), tuple(differing)


def _copy_record(source: Store, target: Store, key: str) -> None:
    data = source.read(key, _RECORD_LIMIT_BYTES)
    if data is not None:
        target.create(key, data)
