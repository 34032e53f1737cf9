"""The mechanical gate's job and result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.recipe.compatibility import Fit
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.record import Job
from handoff.artifacts.release.manifest import PackageFile
from handoff.artifacts.release.mechanics import USUAL_LIMITS, Mechanics, RunnerLimits


@dataclass(frozen=True)
class ProbeJob(Job["ProbeResult"]):
    """Run the packages in `folder` in a C++ program.

    `source` is the folder of the program's source; what is compiled of it is kept in `programs`.
    `workspace` is a folder for the job's own files. `signature` and `fit` are what the release's
    manifest will say, and `files` the packages by their paths in the release. `known` is what was
    found of an accepted package of the same code: only the replays are made then.
    """

    folder: Path
    files: tuple[PackageFile, ...]
    fit: Fit
    signature: ModelSignature
    reference: Path
    recipe: Recipe
    source: Path
    programs: Path
    workspace: Path
    limits: RunnerLimits = USUAL_LIMITS
    known: Mechanics | None = None

    @property
    def slug(self) -> str:
        """The target's slug, which is the folder of the packages in a release."""
        return Path(self.files[0].path).parts[0]


@dataclass(frozen=True)
class ProbeResult:
    """The mechanical gate: what was found, and why the package is refused if so.

    What is timed is in it once `MeasureJob` has added it. `runner` is the compiled program, and
    `build_s` how long that took; 0 where it was there.
    """

    mechanics: Mechanics
    reasons: tuple[str, ...]
    runner: Path
    build_s: float = 0.0

    @property
    def accepted(self) -> bool:
        """Return whether the package may be released."""
        return not self.reasons

    @property
    def verdict(self) -> Literal["accepted", "accepted with guard", "refused"]:
        """What was decided."""
        if self.reasons:
            return "refused"
        return "accepted with guard" if self.mechanics.guards else "accepted"


@dataclass(frozen=True)
class MeasureJob(Job["ProbeResult"]):
    """Time the packages that `probing` has `probed`, in the same workspace."""

    probing: ProbeJob
    probed: ProbeResult
