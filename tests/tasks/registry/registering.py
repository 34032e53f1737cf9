"""A registry on a store of its own, driven by the steps that a release and the commands run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from handoff.artifacts.digest import digest_folder
from handoff.artifacts.host import SigningKey, Stores
from handoff.artifacts.recipe.target import native_cpu_target
from handoff.artifacts.record import Job
from handoff.artifacts.release.copies import publish
from handoff.artifacts.release.ledger import LedgerEntry
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.release.mechanics import Mechanics
from handoff.artifacts.release.releases import Releases, open_releases
from handoff.artifacts.release.signing import make_key
from handoff.infra.engine.worker import step_function
from handoff.tasks.registry import pull
from handoff.tasks.registry.append import AppendResult, Change, append
from handoff.tasks.registry.changes import (
    Author,
    PromoteRequest,
    ReleaseRequest,
    Request,
    RetireRequest,
    RollBackRequest,
)
from handoff.tasks.registry.messages import PullJob, PullResult, UploadJob
from handoff.tasks.steps import step_of
from tests.artifacts.samples import TORCH, sample_target, write_release

R = TypeVar("R")


class Here:
    """Runs steps in this process."""

    def run(self, job: Job[R]) -> R:
        result: R = step_function(step_of(job).module)(job)
        return result


@dataclass(frozen=True)
class SomeRegistry:
    """A store, its keys, and what people do with them."""

    root: Path
    stores: Stores
    key: SigningKey
    author: Author

    @property
    def releases(self) -> Releases:
        return open_releases(self.stores.objects, self.stores.trusted, self.stores.seen)

    def entries(self, model: str = "toy") -> tuple[LedgerEntry, ...]:
        return self.releases.entries(model)

    def change(self, request: Request, reason: str = "", **changes: Any) -> AppendResult:
        author = replace(self.author, reason=reason)
        return append(Here(), Here(), Change(request, author, self.stores, self.key, **changes))

    def write(self, created: str = "", model: str = "toy", **changes: Any) -> tuple[Manifest, Path]:
        """Write a release that both gates accept; `changes` are its target's."""
        folder = self.root / f"release-{model}-{created}-{len(list(self.root.iterdir()))}"
        mechanics = Mechanics(case="batch=1 seed=0")
        target = replace(sample_target(native_cpu_target().slug), mechanics=mechanics, **changes)
        manifest = write_release(folder, target, model=model)
        made = replace(manifest, created=created or manifest.created)
        (folder / "manifest.json").write_bytes(made.to_bytes())
        return made, folder

    def release(
        self, created: str = "", alias: str = "candidate", *, rebuild: bool = True,
        model: str = "toy", **changes: Any,
    ) -> int:  # fmt: skip
        """Release; return the version."""
        manifest, folder = self.write(created, model, **changes)
        return self.register(manifest, folder, alias, rebuild=rebuild).version

    def write_from(self, delivery: Path, created: str = "") -> tuple[Manifest, Path]:
        """Write a release that says that it was made from `delivery`."""
        manifest, folder = self.write(created)
        made = replace(manifest, delivery=digest_folder(delivery))
        (folder / "manifest.json").write_bytes(made.to_bytes())
        return made, folder

    def register(
        self, manifest: Manifest, folder: Path, alias: str = "candidate", *,
        rebuild: bool = True, delivery: Path | None = None,
    ) -> AppendResult:  # fmt: skip
        uploaded = Here().run(UploadJob(manifest, folder, self.stores, delivery))
        request = ReleaseRequest(
            manifest.model, manifest.digest, manifest.fingerprint, alias, rebuild
        )
        appended = self.change(request, manifest=manifest, uploaded=uploaded)
        publish(self.releases, manifest.model)
        return appended

    def promote(
        self, version: int | str, alias: str = "production", **changes: Any
    ) -> AppendResult:
        override = bool(changes.pop("override", False))
        measured, narrower = changes.pop("measured", ()), bool(changes.pop("narrower", False))
        request = PromoteRequest("toy", version, alias, override, measured, narrower)
        return self.change(request, **changes)

    def roll_back(self, version: int | None = None, **changes: Any) -> AppendResult:
        return self.change(RollBackRequest("toy", "production", version), **changes)

    def retire(self, version: int) -> AppendResult:
        return self.change(RetireRequest("toy", version))

    def pull(
        self, to: Path | None, reference: str | int | None = "candidate", **changes: Any
    ) -> PullResult:
        plain = {"target": "auto", "torch_version": TORCH, **changes}
        job = PullJob(name="toy", reference=reference, to=to, stores=self.stores, **plain)
        return pull.run(job)


def some_registry(root: Path, objects: str = "") -> SomeRegistry:
    """Return an empty registry with a new key; its store is a folder unless `objects` names one."""
    private, trusted = root / "keys" / "private" / "signing.pem", root / "keys" / "trusted"
    make_key(private, trusted / "own.pub")
    (root / "releases").mkdir()
    stores = Stores(
        objects or str(root / "store"), "sqlite:///nowhere", trusted=(str(trusted),),
        seen=root / "seen.json",
    )  # fmt: skip
    return SomeRegistry(
        root / "releases",
        stores,
        SigningKey(str(private), trusted / "own.pub"),
        Author("ann@training", run="run-1"),
    )
