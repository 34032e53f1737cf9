"""Copy: all that a store's ledgers keep, into another store whose ledgers they go on from.

Each entry names the digest of the one before it, so that two ledgers that have one entry in common
have all before it in common, too.

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

from handoff.artifacts.conformance.storage import CONFORMANCE
from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.errors import StoreFailed, UsageProblem
from handoff.artifacts.release.copies import publish
from handoff.artifacts.release.layout import MODELS, NIGHTS, ledger_key
from handoff.artifacts.release.ledger import Pointer
from handoff.artifacts.release.releases import Releases
from handoff.artifacts.release.signing import ENVELOPE_LIMIT_BYTES
from handoff.artifacts.stores.objects import missing_object, object_key
from handoff.artifacts.stores.store import Store, StoredKey
from handoff.tasks.registry.upkeep.collect import kept_versions, objects_of, stored_objects


@dataclass(frozen=True)
class History:
    """A model's ledger in a store, and how far another store has the same one.

    `length` is how many entries it has, `common` how many of them the other store has, `extra` how
    many that one has behind these. `versions` are those that are kept.
    """

    model: str
    length: int
    common: int
    extra: int
    versions: tuple[Pointer, ...]

    @property
    def missing_entries(self) -> range:
        """The numbers of the entries that the other store lacks."""
        return range(self.common + 1, self.length + 1)

    @property
    def is_diverged(self) -> bool:
        """Return whether the other store's ledger doesn't go on from this one, nor this from it."""
        return self.extra > 0 and self.common < self.length


def compare_history(source: Releases, target: Store, model: str) -> History:
    """Return how far `target` has the ledger of `source`, which is verified as it is read."""
    entries = source.entries(model)
    newest = str(digest_bytes(source.envelope(model, len(entries))))
    # The others as they are named by those behind them, which `entries` has checked.
    digests = [*(entry.previous for entry in entries[1:]), newest]
    target_length = Releases(target, source.trust).last(model, 0)
    common = min(target_length, len(entries))
    while common and _entry_digest(target, model, common) != digests[common - 1]:
        common -= 1
    return History(model, len(entries), common, target_length - common, kept_versions(entries))


def write_history(source: Releases, target: Releases, history: History) -> int:
    """Write the entries that `target` lacks, in their order, then the copies for people.

    What it has behind the common ones is removed first, newest first, so that its ledger is whole
    at any moment. Returns how many entries were written. Raises `StoreFailed` where somebody else
    writes there, too.
    """
    model = history.model
    if history.is_diverged:
        _remove_diverged(target.store, history)
    for number in history.missing_entries:
        if not target.commit(source.envelope(model, number), model, number):
            raise StoreFailed(
                f"somebody else has written entry {number} of {model}'s ledger to "
                f"{target.store.location}",
                expected="one writer while a store is copied", got="two",
                remedy="Find out who releases there, and run the same command again",
            )  # fmt: skip
    if history.missing_entries or not history.extra:
        publish(target, model)
    return len(history.missing_entries)


def _remove_diverged(store: Store, history: History) -> None:
    """Remove the entries that aren't the source's, and all copies that follow from them."""
    last = history.common + history.extra
    for number in range(last, history.common, -1):
        store.remove(ledger_key(history.model, number))
    ledger = f"{MODELS}{history.model}/ledger/"
    for stored in list(store.keys(f"{MODELS}{history.model}/")):
        if not stored.key.startswith(ledger):
            store.remove(stored.key)


def _entry_digest(store: Store, model: str, number: int) -> str:
    data = store.read(ledger_key(model, number), ENVELOPE_LIMIT_BYTES)
    return "" if data is None else str(digest_bytes(data))


def require_same_histories(histories: list[History], source: Store, target: Store) -> None:
    """Raise `StoreFailed` for ledgers of which neither goes on from the other."""
    diverged = [history for history in histories if history.is_diverged]
    if not diverged:
        return
    models = ", ".join(f"{one.model} from entry {one.common + 1} on" for one in diverged[:5])
    raise StoreFailed(
        f"{target.location} has another history than {source.location}",
        expected="no ledger of these models, or one that goes on from the other",
        got=f"{models}{', ...' if len(diverged) > 5 else ''}",
        remedy="Name an empty place. If what that store says of these models is to be given up, "
        "--replace-history lets the first one's ledgers take its place",
    )  # fmt: skip


# Called with what is done (`look`, `copy`), the bytes since the last call, and the bytes in all.
Progress = Callable[[str, int, int], None]

_AT_ONCE = 8
_RECORD_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class CopyResult:
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
    source: Releases, target: Releases, *, replaces: bool, pretend: bool, progress: Progress
) -> CopyResult:
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
    needed = _needed_objects(source, histories)
    missing = _missing_objects(source.store, target.store, needed, progress)
    records, differing = _compare_records(source.store, target.store)
    if not pretend:
        _copy_objects(source, target, missing, progress)
        # Whoever collects garbage there may have taken what nothing names yet.
        _copy_objects(
            source, target, _vanished_objects(target.store, needed, source.store), progress
        )
        for key in records:
            if (data := source.store.read(key, _RECORD_LIMIT_BYTES)) is not None:
                target.store.create(key, data)
        for history in histories:
            write_history(source, target, history)
    return CopyResult(
        models, len(missing), sum(one.size_bytes for one in missing),
        len(needed) - len(missing), sum(len(one.missing_entries) for one in histories),
        len(records), differing,
        tuple(one.model for one in histories if one.extra and not one.is_diverged),
    )  # fmt: skip


def _needed_objects(source: Releases, histories: Iterable[History]) -> tuple[Digest, ...]:
    """Return what the versions consist of, but for models that have gone on in the other store."""
    return tuple(
        dict.fromkeys(
            digest
            for history in histories
            if history.missing_entries or not history.extra
            for pointer in history.versions
            for digest in objects_of(source, history.model, pointer)
        )
    )


def _missing_objects(
    source: Store, target: Store, needed: Iterable[Digest], progress: Progress
) -> tuple[StoredKey, ...]:
    """Return what `source` says of the objects that `target` lacks, or has with other bytes."""
    source_objects, target_objects = stored_objects(source), stored_objects(target)
    needed_objects = [_require_stored(source_objects, digest, source) for digest in needed]
    same = [
        one for one in needed_objects
        if one.key in target_objects and target_objects[one.key].size_bytes == one.size_bytes
    ]  # fmt: skip
    total = sum(one.size_bytes for one in same)

    def is_intact(one: StoredKey) -> bool:
        is_same = target.matches(one.key, one.key.rpartition("/")[2])
        progress("look", one.size_bytes, total)
        return is_same

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        intact = {
            one.key for one, is_same in zip(same, pool.map(is_intact, same), strict=True) if is_same
        }
    return tuple(one for one in needed_objects if one.key not in intact)


def _vanished_objects(
    target: Store, needed: Iterable[Digest], source: Store
) -> tuple[StoredKey, ...]:
    target_objects = stored_objects(target)
    gone = [digest for digest in needed if object_key(digest) not in target_objects]
    if not gone:
        return ()
    source_objects = stored_objects(source)
    return tuple(_require_stored(source_objects, digest, source) for digest in gone)


def _require_stored(objects: dict[str, StoredKey], digest: Digest, source: Store) -> StoredKey:
    stored = objects.get(object_key(digest))
    if stored is None:
        raise missing_object(digest, source.location)
    return stored


def _copy_objects(
    source: Releases, target: Releases, missing: tuple[StoredKey, ...], progress: Progress
) -> None:
    total = sum(one.size_bytes for one in missing)

    def copy(stored: StoredKey) -> None:
        digest = Digest(f"sha256:{stored.key.rpartition('/')[2]}")
        file = Path(scratch) / digest.hex
        # Verified before it goes on, and again as it arrives.
        source.objects.fetch(digest, file)
        target.store.upload(stored.key, file, stored.size_bytes, digest.hex)
        file.unlink()
        progress("copy", stored.size_bytes, total)

    with (
        tempfile.TemporaryDirectory(prefix="handoff-copy-") as scratch,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        for done in [pool.submit(copy, one) for one in missing]:
            done.result()


def _compare_records(source: Store, target: Store) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the records that `target` lacks, in the order to write them, and those that differ.

    What others lead to comes first: a night's rows before the night, a signature before its table.
    """
    missing, differing = [], []
    for prefix in (NIGHTS, CONFORMANCE):
        keys = sorted((one.key for one in source.keys(prefix)), key=lambda k: (-k.count("/"), k))
        for key in keys:
            existing = target.read(key, _RECORD_LIMIT_BYTES)
            if existing is None:
                missing.append(key)
            elif existing != source.read(key, _RECORD_LIMIT_BYTES):
                differing.append(key)
    return tuple(missing), tuple(differing)
