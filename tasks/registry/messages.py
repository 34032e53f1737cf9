"""What the steps that reach the stores are asked by releases and pulls, and what they answer.

Those that change a ledger are in `tasks.registry.changes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.digest import Digest
from handoff.artifacts.host import SigningKey, Stores
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.record import Job
from handoff.artifacts.release.evidence import ServedVersion
from handoff.artifacts.release.manifest import Manifest

Layout = Literal["release", "triton"]


@dataclass(frozen=True)
class KeyJob(Job["KeyResult"]):
    """Open the signing key, or make it, before anything is built that it would have to sign.

    It has to be one of the keys in the places `trusted`, unless that is None.
    """

    key: SigningKey
    trusted: tuple[str, ...] | None


@dataclass(frozen=True)
class KeyResult:
    """The signing key's id, and its public key in PEM."""

    key_id: str
    public_pem: str


@dataclass(frozen=True)
class LookUpJob(Job["LookUpResult"]):
    """Find the version of `model` that was released from what `fingerprint` stands for.

    `alias` is the one that the release is going to move. The `delivery`, the `recipe` and the
    `compiler` are what the fingerprint stands for: what changed is worked out from them.
    """

    model: str
    fingerprint: Digest
    stores: Stores
    alias: str
    delivery: Digest
    recipe: Recipe
    compiler: str


@dataclass(frozen=True)
class LookUpResult:
    """The version that would be made again, where its files are all in the store; else None.

    `served` describes the version in production, where a new one is made.
    """

    version: int | None
    manifest: Digest | None = None
    served: ServedVersion | None = None


@dataclass(frozen=True)
class UploadJob(Job["UploadResult"]):
    """Store the files below `folder` that `manifest` names, the manifest, and its evidence.

    `delivery` is the staged copy of the delivery, which is stored, too; None leaves it out.
    """

    manifest: Manifest
    folder: Path
    stores: Stores
    delivery: Path | None = None


@dataclass(frozen=True)
class UploadResult:
    """The digests of the list of parts and of the evidence, by name, and of the delivery's list.

    `lacking` says, in sentences, what the store does not guarantee.
    """

    parts: Digest
    evidence: dict[str, Digest]
    lacking: tuple[str, ...] = ()
    delivery: Digest | None = None


@dataclass(frozen=True)
class CatalogueJob(Job["CatalogueResult"]):
    """Show in MLflow, and in the store's copies for people, what a model's ledger says.

    `folder` holds the files of `version`, where they are still here. `flow_run` is the page of the
    run that released it, or its id. With `repairs`, files that MLflow lost are uploaded again.
    """

    stores: Stores
    model: str
    version: int | None = None
    folder: Path | None = None
    flow_run: str = ""
    repairs: bool = False


@dataclass(frozen=True)
class CatalogueResult:
    """The newest version that is shown; 0 for none.

    `put_back` says in sentences which of MLflow's aliases were set to what the ledger has, and
    `foreign` are those that only MLflow has. Files of the `repaired` versions had been lost.
    """

    version: int
    put_back: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    repaired: tuple[int, ...] = ()


@dataclass(frozen=True)
class PullJob(Job["PullResult"]):
    """Fetch the version that `reference` names (None: the newest) into the folder `to`.

    `target` is a slug, or `auto` for the best one that fits this machine and the torch of
    `torch_version` (None leaves torch out). Without `to` everything is fetched and verified, and
    nothing kept. With the layout `triton`, `to` is a model repository of Triton Inference Server,
    in which the model gets the version as one more.
    """

    name: str
    reference: str | int | None
    to: Path | None
    target: str
    stores: Stores
    torch_version: str | None
    layout: Layout = "release"


@dataclass(frozen=True)
class PullResult:
    """What was pulled, and where it lies; `chosen` says why that version, where none was named."""

    folder: Path | None
    model: str
    version: int
    target: str
    manifest: Digest
    chosen: str = ""


@dataclass(frozen=True)
class RestoreJob(Job["RestoreResult"]):
    """Fetch the delivery that a version of `model` was made from into the new folder `folder`."""

    stores: Stores
    model: str
    version: int
    folder: Path


@dataclass(frozen=True)
class RestoreResult:
    """The delivery's folder, its digest, and where the signed record says that it comes from."""

    folder: Path
    digest: Digest
    lineage: Lineage


@dataclass(frozen=True)
class CollectJob(Job["CollectResult"]):
    """Remove what no version needs from the store, once it is older than `grace_h` hours.

    With `pretend` nothing is removed.
    """

    stores: Stores
    grace_h: float
    pretend: bool = False


@dataclass(frozen=True)
class CollectResult:
    """What is needed, what was not and is gone, what was not and is too new; uploads abandoned."""

    kept: int
    kept_bytes: int
    removed: int
    removed_bytes: int
    spared: int
    abandoned: int


@dataclass(frozen=True)
class RecordsJob(Job["Records"]):
    """Read the records of some versions of a model."""

    stores: Stores
    model: str
    versions: tuple[int, ...]


@dataclass(frozen=True)
class Records:
    """The records, each as it was signed, in the order in which they were asked for."""

    manifests: tuple[Manifest, ...]
