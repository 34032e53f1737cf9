"""What a followed model serves, and what was asked for: an alias, looked up in the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.host import Stores
from handoff.artifacts.recipe.fit import installed_torch
from handoff.artifacts.release.difference import refused_requests
from handoff.artifacts.release.ledger import LedgerEntry, Pointer, SeenLedgers
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.artifacts.release.releases import Releases, SignedRelease
from handoff.artifacts.release.signing import Trust
from handoff.artifacts.serve.loader import FileName, Layouts
from handoff.artifacts.stores.store import open_store
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
        """Return what the alias points to; where the ledger hasn't gone on, that is one request.

        It lists the ledger from the newest known entry on. Raises `StoreFailed`, `PackageRefused`
        for a ledger that isn't verified or went back, and `RegistryFailed` where the alias points
        to nothing.
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


@dataclass(frozen=True)
class Serving:
    """What is served, since when, and why it isn't what the alias points to, if it isn't.

    `commit` is the training side's commit that the version says it comes from ('' for none),
    `digest` that of its signed record. `since` is when it took over here, and `looked` when the
    store was last asked with success; both have a time zone. `wanted` is the version that the alias
    pointed to then. `error` is '' where `wanted` is served and the store could be asked; else one
    sentence.
    """

    model: str
    alias: str
    version: int
    target: str
    commit: str
    digest: Digest
    since: datetime
    looked: datetime
    wanted: int
    error: str = ""

    @property
    def is_current(self) -> bool:
        """Tell whether what is served is what the alias pointed to at the last look."""
        return self.version == self.wanted and not self.error


@dataclass(frozen=True)
class FollowOptions:
    """How an alias is followed: see `handoff.follow`."""

    target: str = "auto"
    file: FileName | None = None
    runners: int = 1
    check_values: bool = True
    layouts: Layouts = "refuse"
    every_s: float = 30.0
    jitter: float = 0.2
    narrower: bool = False
    folder: Path | None = None
    on_change: Callable[[Serving], object] | None = None


def require_as_wide(version: int, now: Manifest, then: Manifest) -> None:
    """Raise `PackageRefused` where `version`, whose record is `then`, refuses what is taken now.

    So does one whose outputs have other names, dtypes or ranks, or come in another structure:
    callers count on those.
    """
    told = [
        *refused_requests(now.signature, then.signature),
        *_other_outputs(now.signature, then.signature),
        *_other_structure(now, then),
    ]
    if not told:
        return
    raise PackageRefused(
        f"{then.model} version {version} takes or gives less than what is served now",
        expected="a version that takes every request that is taken now, and answers alike",
        got="it refuses " + "; ".join(told[:5]) if told[0].startswith("those") else told[0],
        remedy="Start the serving processes again with it once no such request comes any more, or "
        "follow with narrower=True",
    )  # fmt: skip


def _other_outputs(now: ModelSignature, then: ModelSignature) -> list[str]:
    before = [(spec.name, spec.dtype, len(spec.shape)) for spec in now.outputs]
    after = [(spec.name, spec.dtype, len(spec.shape)) for spec in then.outputs]
    if before == after:
        return []
    return [f"outputs {_listed(after)}, where they were {_listed(before)}"]


def _other_structure(now: Manifest, then: Manifest) -> list[str]:
    before, after = (
        one.structure.form_of(len(one.signature.outputs)) or "a tuple of tensors"
        for one in (now, then)
    )
    return [] if before == after else [f"a result {after}, where it was {before}"]


def _listed(outputs: list[tuple[str, str, int]]) -> str:
    return ", ".join(f"{name}: {dtype} of {rank} axes" for name, dtype, rank in outputs)
