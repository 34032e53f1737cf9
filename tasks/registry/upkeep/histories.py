"""The ledgers of two stores, one beside the other: which goes on from which, and where they part.

Each entry names the digest of the one before it, so that two ledgers that have one entry in common
have all before it in common, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.release.copies import publish
from handoff.artifacts.release.layout import MODELS, ledger_key
from handoff.artifacts.release.ledger import Pointer
from handoff.artifacts.release.releases import Releases
from handoff.artifacts.release.signing import ENVELOPE_LIMIT_BYTES
from handoff.artifacts.stores.store import Store
from handoff.tasks.registry.upkeep.contents import kept_versions


@dataclass(frozen=True)
class History:
    """A model's ledger in a store, and how far another store has the same one.

    `length` is how many entries it has, `common` how many of them the other store has, `beyond` how
    many that one has behind these. `versions` are those that are kept.
    """

    model: str
    length: int
    common: int
    beyond: int
    versions: tuple[Pointer, ...]

    @property
    def lacking(self) -> range:
        """The numbers of the entries that the other store lacks."""
        return range(self.common + 1, self.length + 1)

    @property
    def is_other(self) -> bool:
        """Tell whether the other store's ledger doesn't go on from this one, nor this from it."""
        return self.beyond > 0 and self.common < self.length


def compare_history(source: Releases, target: Store, model: str) -> History:
    """Return how far `target` has the ledger of `source`, which is verified as it is read."""
    entries = source.entries(model)
    newest = str(digest_bytes(source.envelope(model, len(entries))))
    # The others as they are named by those behind them, which `entries` has checked.
    digests = [*(entry.previous for entry in entries[1:]), newest]
    there = Releases(target, source.trust).last(model, 0)
    common = min(there, len(entries))
    while common and _digest_at(target, model, common) != digests[common - 1]:
        common -= 1
    return History(model, len(entries), common, there - common, kept_versions(entries))


def write_history(source: Releases, target: Releases, history: History) -> int:
    """Write the entries that `target` lacks, in their order, then the copies for people.

    What it has behind the common ones is removed first, newest first, so that its ledger is whole
    at any moment. Returns how many entries were written. Raises `StoreFailed` where somebody else
    writes there, too.
    """
    model = history.model
    if history.is_other:
        _remove_beyond(target.store, history)
    for number in history.lacking:
        if not target.commit(source.envelope(model, number), model, number):
            raise StoreFailed(
                f"somebody else has written entry {number} of {model}'s ledger to "
                f"{target.store.location}",
                expected="one writer while a store is copied", got="two",
                remedy="Find out who releases there, and run the same command again",
            )  # fmt: skip
    if history.lacking or not history.beyond:
        publish(target, model)
    return len(history.lacking)


def _remove_beyond(store: Store, history: History) -> None:
    """Remove the entries that aren't the source's, and all copies that follow from them."""
    last = history.common + history.beyond
    for number in range(last, history.common, -1):
        store.remove(ledger_key(history.model, number))
    ledger = f"{MODELS}{history.model}/ledger/"
    for stored in list(store.keys(f"{MODELS}{history.model}/")):
        if not stored.key.startswith(ledger):
            store.remove(stored.key)


def _digest_at(store: Store, model: str, number: int) -> str:
    data = store.read(ledger_key(model, number), ENVELOPE_LIMIT_BYTES)
    return "" if data is None else str(digest_bytes(data))


def require_same_histories(histories: list[History], source: Store, target: Store) -> None:
    """Raise `StoreFailed` for ledgers of which neither goes on from the other."""
    others = [history for history in histories if history.is_other]
    if not others:
        return
    told = ", ".join(f"{one.model} from entry {one.common + 1} on" for one in others[:5])
    raise StoreFailed(
        f"{target.location} has another history than {source.location}",
        expected="no ledger of these models, or one that goes on from the other",
        got=f"{told}{', ...' if len(others) > 5 else ''}",
        remedy="Name an empty place. If what that store says of these models is to be given up, "
        "--replace-history lets the first one's ledgers take its place",
    )  # fmt: skip
