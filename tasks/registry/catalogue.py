"""Catalogue: what a model's ledger says, shown in MLflow and in the store's copies for people.

It is done after the fact: a version is released once the ledger has it. A catalogue that could not
be reached is made up for by the next change, or by `handoff sync`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from handoff.artifacts.digest import Digest
from handoff.artifacts.mlflow.registry import Catalogue, EarlierVersionsMissing
from handoff.artifacts.mlflow.session import import_mlflow
from handoff.artifacts.mlflow.versions import Listing
from handoff.artifacts.release.copies import EVIDENCE_LIMIT_BYTES, publish
from handoff.artifacts.release.ledger import LedgerEntry
from handoff.artifacts.release.releases import Releases, SignedRelease, open_releases
from handoff.artifacts.release.statement import RELEASE_FILE, release_files
from handoff.tasks.registry.messages import CatalogueJob, CatalogueResult
from handoff.tasks.registry.pull import fetch

# A catalogue made again is not filled with years of nightly versions: these, and those that an
# alias points to.
_NEWEST = 16
# Who released a version this long ago is not about to list it any more.
_ABANDONED = timedelta(minutes=10)


def prepare() -> None:
    """Import what takes more than a second before it is needed."""
    import_mlflow()


def run(job: CatalogueJob) -> CatalogueResult:
    """Show what isn't shown yet. Raises `StoreFailed` and `RegistryFailed`; it can be run again."""
    stores = job.stores
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    publish(releases, job.model)
    update = _CatalogueUpdate(releases, Catalogue(stores.tracking_uri, stores.artifact_root), job)
    return update.run()


class _CatalogueUpdate:
    """One model's ledger on its way into MLflow."""

    def __init__(self, releases: Releases, catalogue: Catalogue, job: CatalogueJob) -> None:
        self.releases = releases
        self.catalogue = catalogue
        self.job = job

    def run(self) -> CatalogueResult:
        model = self.job.model
        head = self.releases.require_head(model).entry
        versions = range(max(1, head.newest - _NEWEST + 1), head.newest + 1)
        aliased = {pointer.version for pointer in head.aliases.values()}
        shown = sorted({*versions, *aliased} - {*head.retired})
        known = {version: self.releases.release_entry(model, version).release for version in shown}
        last = self.job.version or (shown[-1] if shown else 0)
        if last:
            for version in self.catalogue.missing_before(model, last, list(known), known):
                if self._is_abandoned(version):
                    self._list_version(version, known)
            self._list_version(last, known)
        if head.retired:
            self.catalogue.retire(
                model,
                head.retired,
                lambda version: self.releases.release_entry(model, version).release,
            )
        put_back: tuple[str, ...] = ()
        while True:
            aliases = {alias: pointer.version for alias, pointer in head.aliases.items()}
            known |= {pointer.version: pointer.release for pointer in head.aliases.values()}
            pointed = self.catalogue.set_aliases(model, aliases, known)
            put_back += pointed.put_back
            # Who moved one meanwhile may have pointed before we did.
            latest = self.releases.require_head(model).entry
            if latest.aliases == head.aliases:
                repaired = self._repair_versions(latest) if self.job.repairs else ()
                return CatalogueResult(last, put_back, pointed.foreign, repaired)
            head = latest

    def _repair_versions(self, head: LedgerEntry) -> tuple[int, ...]:
        """Upload again what MLflow shows and lost; return the versions that this was done for."""
        model = self.job.model
        listed = self.catalogue.list_versions(model)
        return tuple(v for v in head.kept if v in listed and self._repair_version(listed[v], v))

    def _repair_version(self, listing: Listing, version: int) -> bool:
        """Upload again what a listed version lacks; return whether it lacked anything."""
        pointer = self.releases.release_entry(self.job.model, version).pointer
        # An MLflow that two stores share may list another's version by this number.
        if listing.release != pointer.release:
            return False
        release = self.releases.read(self.job.model, pointer)
        names = release.claim.evidence
        if not self.catalogue.missing_files(release.manifest, release.digest, names):
            return False
        with tempfile.TemporaryDirectory(prefix="handoff-catalogue-") as scratch:
            folder = Path(scratch)
            fetch(self.releases, release, release_files(release.manifest), folder)
            self.catalogue.upload_again(
                release.claim, release.manifest, folder,
                release=release.digest, evidence=self._evidence(release),
            )  # fmt: skip
        return True

    def _is_abandoned(self, version: int) -> bool:
        created = datetime.fromisoformat(self.releases.release_entry(self.job.model, version).at)
        return datetime.now(UTC) - created > _ABANDONED

    def _list_version(self, version: int, known: Mapping[int, Digest]) -> Listing:
        pointer = self.releases.release_entry(self.job.model, version).pointer
        release = self.releases.read(self.job.model, pointer)
        while True:
            try:
                return self._list_one(release, known)
            except EarlierVersionsMissing as missing:
                for earlier in missing.versions:
                    self._list_version(earlier, known)

    def _list_one(self, release: SignedRelease, known: Mapping[int, Digest]) -> Listing:
        if release.claim.version == self.job.version and self.job.folder is not None:
            return self._list_folder(release, self.job.folder, known)
        with tempfile.TemporaryDirectory(prefix="handoff-catalogue-") as scratch:
            fetch(self.releases, release, release_files(release.manifest), Path(scratch))
            return self._list_folder(release, Path(scratch), known)

    def _list_folder(
        self, release: SignedRelease, folder: Path, known: Mapping[int, Digest]
    ) -> Listing:
        (folder / RELEASE_FILE).write_bytes(release.envelope)
        claim = release.claim
        return self.catalogue.list_release(
            claim,
            release.manifest,
            folder,
            release=release.digest,
            evidence=self._evidence(release),
            # What another run has released, and not listed, is not this one's.
            flow_run=self.job.flow_run if claim.version == self.job.version else "",
            known=list(known),
            releases=known,
        )

    def _evidence(self, release: SignedRelease) -> dict[str, bytes]:
        return {
            name: self.releases.objects.read_bytes(digest, EVIDENCE_LIMIT_BYTES)
            for name, digest in release.claim.evidence.items()
        }
