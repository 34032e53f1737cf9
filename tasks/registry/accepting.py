"""A release is all or nothing: what is asked of a manifest before it is uploaded, and signed."""

from __future__ import annotations

from handoff.artifacts.errors import BlessingRefused, BuildCrashed
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.artifacts.release.remedy import next_step


def refused_targets(manifest: Manifest) -> list[TargetRecord]:
    """Return the targets that can't be vouched for."""
    return [target for target in manifest.targets if target.verdict == "refused"]


def require_accepted(manifest: Manifest) -> None:
    """Raise `BlessingRefused` unless every target was accepted: a release is all or nothing.

    It is `BuildCrashed` where no target was found to be wrong.
    """
    refused = refused_targets(manifest)
    if not refused:
        return
    reasons = [f"{target.slug}: {reason}" for target in refused for reason in target.told_reasons]
    shown = "; ".join(reasons[:5]) + (f"; and {len(reasons) - 5} more" if len(reasons) > 5 else "")
    kind = BuildCrashed if all(target.crashed for target in refused) else BlessingRefused
    raise kind(
        f"{manifest.model} is not released, because its package can't be vouched for",
        expected="every target within the agreed tolerance",
        got=shown,
        remedy=f"Nothing was registered. {next_step(manifest)}",
    )
