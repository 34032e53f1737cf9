"""Signed releases to list, and what a test asks of MLflow about them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from handoff.artifacts.digest import Digest, digest_file
from handoff.artifacts.mlflow.registry import Catalogue
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, TargetRecord
from handoff.artifacts.release.statement import RELEASE_FILE, Claim, open_release
from tests.artifacts.samples import sample_key, sign_release, write_release
from tests.limits import LIMIT_S

EVIDENCE = {
    "report.md": b"# toy: accepted\n",
    "report.html": b"<h1>toy</h1>\n",
    "search-cpu.svg": b"<svg/>\n",
}

_PROGRAM = """
import json, os, sys, traceback
from pathlib import Path
import mlflow
from mlflow import MlflowClient
from tests.artifacts.mlflow.listing import list_signed, read_signed
from handoff.artifacts.mlflow.registry import Catalogue

def run(options):
    if options["stage"]:
        def killed(*_, **__):
            os.kill(os.getpid(), 9)
        plain = getattr(MlflowClient, options["stage"])
        def killed_after(*arguments, **named):
            plain(*arguments, **named)
            killed()
        setattr(MlflowClient, options["stage"], killed_after if options["after"] else killed)
    catalogue = Catalogue(options["uri"], options["root"], order_wait_s=120)
    print(list_signed(catalogue, read_signed(Path(options["folder"])), options["known"]).version)

for line in sys.stdin:
    started = []
    for options in json.loads(line):
        started.append(os.fork())
        if not started[-1]:
            os.dup2(2, 1)
            try:
                run(options)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
    # They stay unreaped, as children of a program that is still busy.
    ended = [os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT).si_status for pid in started]
    print(json.dumps(ended), flush=True)
"""


@dataclass(frozen=True)
class Signed:
    """A release in a folder, with what its signature says."""

    folder: Path
    manifest: Manifest
    claim: Claim
    release: Digest


def signed_release(
    folder: Path, *targets: TargetRecord, version: int = 1, model: str = "toy", **changes: object
) -> Signed:
    """Write a small release, with `changes` of its record, and sign it as `version`."""
    created = f"2026-11-21T03:00:{version:02d}+00:00"
    manifest = write_release(folder, *targets, model=model)
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


class Registrars:
    """A process that has imported MLflow, which takes seconds, and whose children list releases."""

    def __init__(self, log: Path) -> None:
        """Start it; what its children print goes to `log`."""
        with log.open("w") as written:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM], text=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=written,
            )  # fmt: skip

    def kill_one(self, catalogue: Catalogue, signed: Signed, stage: str, *, after: bool) -> int:
        """List a release in a child that kills itself before or after `stage`; return its signal.

        It is left a zombie.
        """
        (ended,) = self._run([_options(catalogue, signed, stage=stage, after=after)])
        return ended

    def list_at_once(
        self, catalogue: Catalogue, releases: Sequence[Signed], known: Collection[int]
    ) -> list[int]:
        """List releases, each in a child of its own; return their exit statuses."""
        return self._run([_options(catalogue, one, known=list(known)) for one in releases])

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=LIMIT_S)

    def _run(self, children: list[dict[str, object]]) -> list[int]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(children) + "\n")
        stdin.flush()
        ended: list[int] = json.loads(stdout.readline())
        return ended


def _options(catalogue: Catalogue, signed: Signed, **changes: object) -> dict[str, object]:
    return {
        "uri": catalogue.tracking_uri, "root": catalogue.artifact_root,
        "folder": str(signed.folder), "stage": "", "after": False, "known": [], **changes,
    }  # fmt: skip


def client_of(catalogue: Catalogue) -> Any:
    """Return MLflow's own client."""
    from mlflow import MlflowClient

    return MlflowClient(catalogue.tracking_uri, registry_uri=catalogue.tracking_uri)


def all_files(folder: Path) -> set[str]:
    """Return the paths of the files below a folder, relative to it."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
