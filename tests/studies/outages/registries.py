"""A registry that has one version, in a folder that is brought back to that state for each case."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from handoff.artifacts.digest import digest_folder
from handoff.artifacts.host import Stores
from handoff.artifacts.release.copies import publish
from handoff.artifacts.release.manifest import Manifest
from handoff.tasks.registry.append import AppendResult, raise_as_not_shown
from handoff.tasks.registry.changes import PromoteRequest, ReleaseRequest
from handoff.tasks.registry.messages import CatalogueJob, LookUpJob, UploadJob
from tests.mlflow_server import copy_mlflow_tables
from tests.tasks.registry.registering import Here, SomeRegistry, some_registry

MODEL = "toy"
_STEP_LIMIT_S = 60.0


@dataclass(frozen=True)
class Delivery:
    """What was built from a delivery: its record, its packages' folder, and the delivery itself."""

    manifest: Manifest
    folder: Path
    staged: Path | None = None


@dataclass(frozen=True)
class Place:
    """A registry below `root/registry`, and its state after a first release, which is kept."""

    root: Path
    registry: SomeRegistry
    first: Delivery
    second: Delivery
    model: str
    kept: Path

    @property
    def state(self) -> Path:
        """Everything that a registry consists of: store, keys, MLflow, what was seen."""
        return self.root / "registry"

    def restore(self) -> None:
        """Bring the registry back to where it has version 1 alone, in production."""
        shutil.rmtree(self.state, ignore_errors=True)
        shutil.copytree(self.kept, self.state, symlinks=True)

    def keep(self) -> None:
        """Make the present state the one that `restore` brings back."""
        shutil.rmtree(self.kept, ignore_errors=True)
        shutil.copytree(self.state, self.kept, symlinks=True)


def make_place(
    root: Path, objects: str = "", tracking_uri: str = "", *, model: str = MODEL,
    artifact_root: str = "", kept: Path | None = None,
) -> Place:  # fmt: skip
    """Return a place whose registry is empty; MLflow is embedded unless a URI is given."""
    state = root / "registry"
    state.mkdir(parents=True)
    made = some_registry(state, objects)
    stores = replace(
        made.stores,
        tracking_uri=tracking_uri or f"sqlite:///{state / 'mlflow' / 'mlflow.db'}",
        artifact_root="" if tracking_uri else artifact_root or str(state / "mlflow" / "artifacts"),
    )
    registry = replace(made, stores=stores)
    deliveries = []
    for day in (21, 22):
        manifest, folder = registry.write(f"2026-11-{day}T03:00:00+00:00", model)
        # What is made from the same is found again: these are of two deliveries.
        staged = root / f"staged-{day}"
        staged.mkdir()
        (staged / "module.py").write_text(f"# of day {day}\n")
        (staged / "state_dict.pt").write_bytes(b"the same weights")
        own = replace(manifest, fingerprint=manifest.digest, delivery=digest_folder(staged))
        (folder / "manifest.json").write_bytes(own.to_bytes())
        deliveries.append(Delivery(own, folder, staged))
    return Place(root, registry, deliveries[0], deliveries[1], model, kept or root / "kept")


def release(
    registry: SomeRegistry, delivery: Delivery, *, rebuild: bool = False, alias: str = "candidate"
) -> AppendResult:
    """Do what a release does once everything is built, in the flow's order."""
    here, stores, manifest = Here(), registry.stores, delivery.manifest
    looking = LookUpJob(
        manifest.model,
        manifest.fingerprint,
        stores,
        alias,
        manifest.delivery,
        manifest.recipe,
        "g++",
    )
    known = here.run(looking)
    if known.version and not rebuild:
        assert known.manifest is not None
        request = ReleaseRequest(manifest.model, known.manifest, manifest.fingerprint, alias)
        appended = registry.change(request)
    else:
        job = UploadJob(manifest, delivery.folder, stores, delivery.staged)
        uploaded = here.run(job)
        request = ReleaseRequest(
            manifest.model, manifest.digest, manifest.fingerprint, alias, rebuild
        )
        appended = registry.change(request, manifest=manifest, uploaded=uploaded)
    is_ours = appended.entry is not None and appended.entry.manifest == manifest.digest
    folder = delivery.folder if is_ours else None
    with raise_as_not_shown(manifest.model, appended):
        show(stores, appended.version, folder, manifest.model)
    return appended


def show(
    stores: Stores, version: int | None = None, folder: Path | None = None, model: str = MODEL
) -> None:
    """Show in MLflow, and in the store's copies, what the ledger says."""
    Here().run(CatalogueJob(stores, model, version, folder))


def append_only(place: Place) -> None:
    """Release version 2 without MLflow: upload, draft, sign, commit, publish."""
    registry, second = place.registry, place.second
    registry.register(second.manifest, second.folder, rebuild=False, delivery=second.staged)


def release_first(place: Place, *, is_shown: bool = True) -> None:
    """Release version 1, promote it, and keep that state; MLflow is left out unless `is_shown`."""
    registry, first = place.registry, place.first
    if is_shown:
        uri = registry.stores.tracking_uri
        if uri.startswith("sqlite:///"):
            copy_mlflow_tables(Path(uri.removeprefix("sqlite:///")))
        release(registry, first)
    else:
        registry.register(first.manifest, first.folder, delivery=first.staged)
    registry.change(PromoteRequest(place.model, 1, "production"))
    publish(registry.releases, place.model)
    if is_shown:
        show(registry.stores, model=place.model)
    place.keep()
