"""Signed releases to list, and what a test asks of MLflow about them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from handoff.artifacts.digest import Digest, digest_file
from handoff.artifacts.mlflow.registry import Catalogue
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest
from handoff.artifacts.release.statement import RELEASE_FILE, Claim, open_release
from tests.artifacts.samples import sample_key, sign_release, write_release

EVIDENCE = {
    "report.md": b"# toy: accepted\n",
    "report.html": b"<h1>toy</h1>\n",
    "search-cpu.svg": b"<svg/>\n",
}

_PROGRAM = """
import json, os, sys
from pathlib import Path
from tests.artifacts.mlflow.listing import list_signed, read_signed
from handoff.artifacts.mlflow.registry import Catalogue

options = json.loads(sys.argv[1])
if options["stage"]:
    import mlflow
    from mlflow import MlflowClient
    def killed(*_, **__):
        os.kill(os.getpid(), 9)
    plain = getattr(MlflowClient, options["stage"])
    def killed_after(*arguments, **named):
        plain(*arguments, **named)
        killed()
    setattr(MlflowClient, options["stage"], killed_after if options["after"] else killed)
catalogue = Catalogue(options["uri"], options["root"], order_wait_s=120)
print(list_signed(catalogue, read_signed(Path(options["folder"])), options["known"]).version)
"""


@dataclass(frozen=True)
class Signed:
    """A release in a folder, with what its signature says."""

    folder: Path
    manifest: Manifest
    claim: Claim
    release: Digest


def signed_release(
    folder: Path, *, version: int = 1, model: str = "toy", **changes: object
) -> Signed:
    """Write a small release, with `changes` of its record, and sign it as `version`."""
    created = f"2026-11-21T03:00:{version:02d}+00:00"
    manifest = write_release(folder, model=model)
    manifest = replace(manifest, **{"created": created, **changes})  # type: ignore[arg-type]
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    sign_release(folder, manifest, version=version)
    (folder / "key.pub").write_bytes(sample_key().pem)
    return read_signed(folder)


def read_signed(folder: Path) -> Signed:
    """Return the signed release in a folder that another process may have written."""
    from handoff.artifacts.release.manifest import read_manifest
    from handoff.artifacts.release.signing import read_trust

    data = (folder / RELEASE_FILE).read_bytes()
    claim = open_release(data, read_trust([folder / "key.pub"]), "the sample")
    return Signed(folder, read_manifest(folder), claim, digest_file(folder / RELEASE_FILE))


def list_signed(catalogue: Catalogue, signed: Signed, known: Collection[int] = ()) -> Any:
    """List a release with the sample's evidence."""
    return catalogue.list_release(
        signed.claim, signed.manifest, signed.folder,
        release=signed.release, evidence=EVIDENCE, flow_run="https://prefect/flow-runs/7",
        known=known,
    )  # fmt: skip


def start_listing(
    catalogue: Catalogue, signed: Signed, *, stage: str = "", after: bool = False,
    known: Collection[int] = (),
) -> subprocess.Popen[str]:  # fmt: skip
    """List a release in a process of its own, which is killed before or after `stage`."""
    options = {
        "uri": catalogue.tracking_uri, "root": catalogue.artifact_root,
        "folder": str(signed.folder), "stage": stage, "after": after, "known": list(known),
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, json.dumps(options)], text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def client_of(catalogue: Catalogue) -> Any:
    """Return MLflow's own client."""
    from mlflow import MlflowClient

    return MlflowClient(catalogue.tracking_uri, registry_uri=catalogue.tracking_uri)


def all_files(folder: Path) -> set[str]:
    """Return the paths of the files below a folder, relative to it."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
