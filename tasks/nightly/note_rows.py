"""Note rows: what happened to some models, for the night's summary."""

from __future__ import annotations

from handoff.artifacts.nightly.night_notes import note_row
from handoff.artifacts.stores.opening import open_store
from handoff.tasks.nightly.messages import NotedRows, NoteRowsJob


def run(job: NoteRowsJob) -> NotedRows:
    """Keep each row whose model has none of this night; return those; raise `StoreFailed`."""
    store = open_store(job.stores.objects)
    return NotedRows(tuple(row for row in job.rows if note_row(store, job.stamp, row)))
