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
from handoff.artifacts.recipe.compatibility import installed_torch
from handoff.artifacts.release.difference import refused_requests
from handoff.artifacts.release.ledger import LedgerEntry, Pointer, SeenLedgers
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.artifacts.release.releases import Releases, SignedRelease
from handoff.artifacts.release.signing import Trust
from handoff.artifacts.serve.loader import FileName, Layouts
from handoff.artifacts.stores.store import open_store
from handoff.tasks.registry.pull import Progress, choose_target, write_release

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
        entry = self._cached_entry() or self._read_entry()
        if self.alias not in entry.aliases:
            raise self.releases.not_registered_error(self.model, self.alias)
        return entry.aliases[self.alias]

    def read(self, pointer: Pointer) -> SignedRelease:
        """Return the version's record and signature, verified. Raises as `Releases.read` does."""
        return self.releases.read(self.model, pointer)

    def pull(
        self, release: SignedRelease, target: str, to: Path, progress: Progress
    ) -> TargetRecord:
        """Fetch the package for `target`, or the best for this machine, verified, into `to`."""
        chosen = choose_target(release.manifest, target, installed_torch())
        write_release(self.releases, release, chosen, to, progress)
        return chosen

    def _cached_entry(self) -> LedgerEntry | None:
        """Return the entry that was read, where it is there and still the newest one; else None."""
        entry = self._entry
        if entry is None or self.releases.last(self.model, entry.sequence) != entry.sequence:
            return None
        return entry

    def _read_entry(self) -> LedgerEntry:
        # A ledger that went back is reported by each look, and not by the first alone.
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
        """Return whether what is served is what the alias pointed to at the last look."""
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


def require_compatible(version: int, current: Manifest, candidate: Manifest) -> None:
    """Raise `PackageRefused` where `version`, the `candidate`, refuses what `current` takes.

    So does one whose outputs have other names, dtypes or ranks, or come in another structure:
    callers count on those.
    """
    lost = [
        *refused_requests(current.signature, candidate.signature),
        *_describe_output_changes(current.signature, candidate.signature),
        *_describe_structure_change(current, candidate),
    ]
    if not lost:
        return
    raise PackageRefused(
        f"{candidate.model} version {version} takes or gives less than what is served now",
        expected="a version that takes every request that is taken now, and answers alike",
        got="it refuses " + "; ".join(lost[:5]) if lost[0].startswith("those") else lost[0],
        remedy="Start the serving processes again with it once no such request comes any more, or "
        "follow with narrower=True",
    )  # fmt: skip


def _describe_output_changes(current: ModelSignature, candidate: ModelSignature) -> list[str]:
    before = [(spec.name, spec.dtype, len(spec.shape)) for spec in current.outputs]
    after = [(spec.name, spec.dtype, len(spec.shape)) for spec in candidate.outputs]
    if before == after:
        return []
    return [f"outputs {_format_outputs(after)}, where they were {_format_outputs(before)}"]


def _describe_structure_change(current: Manifest, candidate: Manifest) -> list[str]:
    before, after = (
        manifest.structure.form_of(len(manifest.signature.outputs)) or "a tuple of tensors"
        for manifest in (current, candidate)
    )
    return [] if before == after else [f"a result {after}, where it was {before}"]


def _format_outputs(outputs: list[tuple[str, str, int]]) -> str:
    return ", ".join(f"{name}: {dtype} of {rank} axes" for name, dtype, rank in outputs)
