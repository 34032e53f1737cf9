"""What one row of the capture table is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.delivery.captures import CaptureMethod, CaptureRow
from handoff.artifacts.record import Job


@dataclass(frozen=True)
class CaptureJob(Job[CaptureRow]):
    """Capture, by one method, the delivery in `staging`."""

    staging: Path
    method: CaptureMethod
