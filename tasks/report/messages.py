"""What is asked of the step that shows a refused release to people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.host import Stores
from handoff.artifacts.mlflow.standalone_runs import Refusal
from handoff.artifacts.record import Job


@dataclass(frozen=True)
class ShowRefusedJob(Job["ShowRefusedResult"]):
    """Show a refused release in MLflow.

    `folder` is where its record and its report are, as far as it came to these.
    """

    stores: Stores
    refusal: Refusal
    folder: Path


@dataclass(frozen=True)
class ShowRefusedResult:
    """Where MLflow shows it, relative to the UI's own address."""

    place: str
