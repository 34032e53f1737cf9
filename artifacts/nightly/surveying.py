"""The messages of the nightly's survey: which models have to be rebuilt, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from handoff.artifacts.messages.job import Job
from handoff.artifacts.messages.registering import Stores
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.release.manifest import Manifest


@dataclass(frozen=True)
class SurveyJob(Job["Survey"]):
    """Look at every model that `alias` serves, or at those of `models` where some are named.

    What an earlier night has found out about the same rebuild counts, but for a model that is
    named.

    What a rebuild would be made with is this machine's: the recipes in the folder `recipes` and the
    C++ compiler `compiler`.
    """

    stores: Stores
    alias: str
    recipes: Path
    compiler: str
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Surveyed:
    """One model: the version that is served, and what has `changed` since it was made.

    With nothing changed there is nothing to do, and `why` says so; `kept_back` is a version that an
    earlier night has made of the same and held to be worse. `today` is the fingerprint of what a
    rebuild would be made from; where an earlier night has refused just that, `refused` says why.
    `problem` is why a model can't be rebuilt at all.
    """

    model: str
    version: int
    recipe: Recipe
    changed: tuple[str, ...] = ()
    today: str = ""
    why: str = ""
    kept_back: int | None = None
    refused: str = ""
    problem: str = ""

    @property
    def is_due(self) -> bool:
        """Tell whether it has to be rebuilt and compared."""
        return bool(self.changed) and not self.problem and not self.refused


@dataclass(frozen=True)
class Survey:
    """Every model that was looked at, and what would be built with."""

    models: tuple[Surveyed, ...]
    toolchain: dict[str, str] = field(default_factory=dict)


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
