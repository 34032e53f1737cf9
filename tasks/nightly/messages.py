"""What is asked of a night: which models are due and why, its rows, how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from handoff.artifacts.host import Stores
from handoff.artifacts.night import Night, NightRow
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.record import Job


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
class ModelSurvey:
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
        """Return whether it has to be rebuilt and compared."""
        return bool(self.changed) and not self.problem and not self.refused


@dataclass(frozen=True)
class Survey:
    """Every model that was looked at, and what would be built with."""

    models: tuple[ModelSurvey, ...]
    toolchain: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NoteRowsJob(Job["NightRows"]):
    """Keep models' rows of the night that began at `stamp`; the first one of a model counts."""

    stores: Stores
    stamp: str
    rows: tuple[NightRow, ...]


@dataclass(frozen=True)
class ReadRowsJob(Job["NightRows"]):
    """Read the rows of the night that began at `stamp`, as they are at the moment `at`.

    A step process answers equal jobs once: `at` distinguishes one question from the next.
    """

    stores: Stores
    stamp: str
    at: float


@dataclass(frozen=True)
class NightRows:
    """The rows that were kept, or those that are there so far, by their models' names."""

    rows: tuple[NightRow, ...]


@dataclass(frozen=True)
class ShowNightJob(Job["ShowNightResult"]):
    """Keep a night's record, draw it and the trends over nights, and show all of it in MLflow.

    What is drawn is written below `folder`. `flow_run` is the page or the id of the night's run.
    """

    stores: Stores
    night: Night
    folder: Path
    flow_run: str = ""


@dataclass(frozen=True)
class ShowNightResult:
    """The night in a sentence, as a table for a log and as Markdown, and where MLflow shows it.

    `place` is that of its run in MLflow's pages, relative to the UI's own.
    """

    headline: str
    table: str
    markdown: str
    place: str
