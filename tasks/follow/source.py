"""What an alias stands for, looked up in the store as cheaply as it lets itself be asked."""

from __future__ import annotations

from pathlib import Path

from handoff.artifacts.recipe.target import installed_torch
from handoff.artifacts.release.ledger import LedgerEntry, Pointer
from handoff.artifacts.release.manifest import TargetRecord
from handoff.artifacts.release.releases import Releases, SignedRelease
from handoff.artifacts.release.seen import SeenLedgers
from handoff.artifacts.release.signing import Trust
from handoff.artifacts.site import Stores
from handoff.artifacts.stores.opening import open_store
from handoff.tasks.registry.pull import Progress, choose_target, keep

# A store that is away is asked again by the next look, and what is served stays meanwhile.
_PATIENCE_S = 10.0


class Alias:
    """An alias of a model in a store, whose every word a trusted key has signed."""

    def __init__(self, stores: Stores, trust: Trust, model: str, alias: str) -> None:
        """Look at `stores` as `trust` allows; nothing is asked yet."""
        seen = SeenLedgers(stores.seen) if stores.seen else None
        store = open_store(stores.objects, patience_s=_PATIENCE_S)
        self.releases = Releases(store, trust, seen)
        self.model = model
        self.alias = alias
        self._entry: LedgerEntry | None = None

    def look(self) -> Pointer:
        """Return what the alias stands for; where the ledger hasn't gone on, that is one request.

        It lists the ledger from the newest known entry on. Raises `StoreFailed`, `PackageRefused`
        for a ledger that isn't verified or went back, and `RegistryFailed` where the alias stands
        for nothing.
        """
        entry = self._known() or self._read()
        if self.alias not in entry.aliases:
            raise self.releases.unknown(self.model, self.alias)
        return entry.aliases[self.alias]

    def read(self, pointer: Pointer) -> SignedRelease:
        """Return the version's record and signature, verified. Raises as `Releases.read` does."""
        return self.releases.read(self.model, pointer)

    def pull(
        self, release: SignedRelease, target: str, to: Path, progress: Progress
    ) -> TargetRecord:
        """Fetch the package for `target`, or the best for this machine, verified, into `to`."""
        chosen = choose_target(release.manifest, target, installed_torch())
        keep(self.releases, release, chosen, to, progress)
        return chosen

    def _known(self) -> LedgerEntry | None:
        """Return the entry that was read, where it is there and still the newest one; else None."""
        known = self._entry
        if known is None or self.releases.last(self.model, known.sequence) != known.sequence:
            return None
        return known

    def _read(self) -> LedgerEntry:
        # A ledger that went back is told by each look, and not by the first alone.
        self._entry = None
        self._entry = self.releases.require_head(self.model).entry
        return self._entry
