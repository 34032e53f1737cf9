"""Before a promotion: time what is promoted beside what it replaces, where both run here."""

from __future__ import annotations

import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from handoff.artifacts.delivery.contract import EXAMPLES_FILE
from handoff.artifacts.messages.changes import SideBySide, SideBySideJob
from handoff.artifacts.messages.registering import PullJob, Stores
from handoff.artifacts.recipe.target import installed_torch
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.release.releases import open_releases
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.registry.pull import run as pull

# Compiled code runs there: no store's credentials, no key.
_RUNNER = ProcessPlan("side-by-side", preload=("timing.side_by_side",))


def race_with_served(
    stores: Stores, model: str, reference: str | int | None, alias: str
) -> tuple[tuple[SideBySide, ...], int | None]:
    """Return how the version compares with the one that `alias` stands for, and which that is.

    Nothing is timed where there is none, where it takes other inputs, and where no target of both
    is a CPU's that runs here with this torch.
    """
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    held = releases.require_head(model).entry.aliases.get(alias)
    wanted = releases.find(model, reference)
    if held is None or held.version == wanted.version:
        return (), held.version if held else None
    before, after = (releases.read(model, one) for one in (held, wanted))
    target = _raced_target(before.manifest, after.manifest)
    if target is None or EXAMPLES_FILE not in after.claim.files:
        return (), held.version
    with tempfile.TemporaryDirectory(prefix="handoff-side-by-side-") as scratch:
        folders = []
        for version in (held.version, wanted.version):
            folders.append(Path(scratch) / str(version))
            pull(PullJob(model, version, folders[-1], target, stores, None))
        # What it verifies them with; a key service's are no files.
        trusted = (Path(place) for place in stores.trusted if ":" not in place)
        runner = replace(_RUNNER, reads=(*folders, *trusted))
        with closing(StepProcess(runner, Path(scratch) / "side-by-side.log")) as process:
            job = SideBySideJob(tuple(folders), target, stores.trusted)
            return (process.run(job),), held.version


def _raced_target(before: Manifest, after: Manifest) -> str | None:
    """Return the best CPU target that both have and that fits this machine; None without one."""
    if before.signature.inputs != after.signature.inputs:
        return None
    torch = installed_torch()
    fitting = [
        {
            target.slug: len(target.fit.cpu_flags)
            for target in manifest.targets
            if target.accepted
            and target.fit is not None
            and not target.fit.gpu_capability
            and target.fit.misfit(torch) is None
        }
        for manifest in (before, after)
    ]
    both = set(fitting[0]) & set(fitting[1]) if torch else set()
    return max(both, key=lambda slug: fitting[1][slug], default=None)
