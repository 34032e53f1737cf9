"""A release on trial: packages in the folder that a pull would write, which nobody has signed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, TargetRecord
from handoff.tasks.probe.messages import ProbeJob


def write_trial_release(job: ProbeJob, folder: Path) -> None:
    """Write what a pulled folder holds: the packages, and a manifest that says what they are.

    The release's own is written after this gate, since it tells its verdict.
    """
    slug = job.slug
    shutil.rmtree(folder, ignore_errors=True)
    (folder / slug).mkdir(parents=True)
    for file in job.files:
        original, place = job.folder / Path(file.path).name, folder / file.path
        try:
            os.link(original, place)
        except OSError:
            shutil.copyfile(original, place)
    record = TargetRecord(slug, accepted=True, reasons=(), files=job.files, fit=job.fit)
    nothing = digest_bytes(b"")
    manifest = Manifest(
        model="trial", delivery=nothing, fingerprint=nothing, verdict="sound",
        signature=job.signature, recipe=job.recipe, lineage=Lineage(), targets=(record,),
    )  # fmt: skip
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
