"""Try a release: opened, called and compared in a process of its own, whose end is a result."""

from __future__ import annotations

from handoff.artifacts.serve.loader import load
from handoff.tasks.follow.goldens import warm_up
from handoff.tasks.follow.messages import TriedRelease, TryReleaseJob


def run(job: TryReleaseJob) -> TriedRelease:
    """Open the package, call it on its examples, and compare with what the release holds.

    Raises `PackageRefused` for one that isn't as it was signed, doesn't fit or gives others.
    """
    model = load(
        job.folder, keys=job.keys, name=job.model, version=job.version, target=job.target,
        file=job.file,
    )  # fmt: skip
    return TriedRelease(warm_up(model, job.folder))
