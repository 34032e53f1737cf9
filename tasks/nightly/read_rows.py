"""Read the rows: what is known so far of a night's models."""

from __future__ import annotations

from handoff.artifacts.nightly.night_notes import read_rows
from handoff.artifacts.stores.opening import open_store
from handoff.tasks.nightly.messages import NotedRows, ReadRowsJob


def run(job: ReadRowsJob) -> NotedRows:
    """Return the night's rows; raise `StoreFailed`."""
    return NotedRows(read_rows(open_store(job.stores.objects), job.stamp))
