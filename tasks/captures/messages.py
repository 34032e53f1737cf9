"""What one row of the capture table is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.delivery.captures import CaptureRow, Road
from handoff.artifacts.record import Job


@dataclass(frozen=True)
class CaptureJob(Job[CaptureRow]):
    """Go one road with the delivery in `staging`."""

    staging: Path
    road: Road
