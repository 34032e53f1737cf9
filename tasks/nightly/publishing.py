"""A night as it goes on and in the end: its rows are kept, read, drawn, and logged in MLflow."""

from __future__ import annotations

from handoff.artifacts.mlflow.description import RunAddress, add_column_gaps, link_run
from handoff.artifacts.mlflow.registry import Catalogue
from handoff.artifacts.night import Night, note_row, read_nights, read_rows, write_night
from handoff.artifacts.stores.store import open_store
from handoff.tasks.nightly.messages import (
    NightRows,
    NoteRowsJob,
    ReadRowsJob,
    ShowNightJob,
    ShowNightResult,
)
from handoff.tasks.nightly.night_page import (
    format_outcomes,
    headline,
    render_night,
    render_night_page,
    text_table,
)
from handoff.tasks.nightly.trends import trends


def note_rows(job: NoteRowsJob) -> NightRows:
    """Keep each row whose model has none of this night; return those; raise `StoreFailed`."""
    store = open_store(job.stores.objects)
    return NightRows(tuple(row for row in job.rows if note_row(store, job.stamp, row)))


def read_night_rows(job: ReadRowsJob) -> NightRows:
    """Return the night's rows; raise `StoreFailed`."""
    return NightRows(read_rows(open_store(job.stores.objects), job.stamp))


_NIGHTS_DRAWN = 60
PAGE_FILE = "night.html"
# Of more models only those that something happened to are drawn.
_MAX_PICTURES = 24
# MLflow takes 8000 characters (3.17, `MAX_TAG_VAL_LENGTH`); a table of more is read as a page.
_NOTE_LIMIT = 7500


def show_night(job: ShowNightJob) -> ShowNightResult:
    """Keep and show the night; one that is kept already, since its run was repeated, as it is.

    Raises `StoreFailed` and `RegistryFailed`; what is kept by then stays.
    """
    store, night = open_store(job.stores.objects), job.night
    nights = read_nights(store, _NIGHTS_DRAWN)
    if recorded := [earlier for earlier in nights if earlier.stamp == night.stamp]:
        (night,) = recorded
    else:
        write_night(store, night)
        nights = (*nights, night)
    is_small = len(night.rows) <= _MAX_PICTURES
    models = [row.model for row in night.rows] if is_small else night.eventful
    pictures = dict(trends(nights, models))
    folder = job.folder
    (folder / "trends").mkdir(parents=True, exist_ok=True)
    for name, data in pictures.items():
        (folder / "trends" / name).write_bytes(data)
    (folder / PAGE_FILE).write_text(render_night_page(night, pictures), encoding="utf-8")
    markdown = render_night(night)
    (folder / "night.md").write_text(markdown, encoding="utf-8")
    (folder / "night.json").write_bytes(night.to_bytes())
    catalogue = Catalogue(job.stores.tracking_uri, job.stores.artifact_root)
    address = catalogue.log_night(
        night, lambda run: describe_night(night, markdown, run, job.flow_run), folder
    )
    return ShowNightResult(headline(night), text_table(night), markdown, address.link())


def describe_night(night: Night, markdown: str, run: RunAddress, flow_run: str) -> str:
    """Return what MLflow says of a night: all of it in the lines that it doesn't fold.

    MLflow shows some four lines of a description, and the rest where somebody asks for it (3.17).
    """
    parts = [
        f"{headline(night)}.",
        format_outcomes(night),
        f"[Each model's figures and why]({run.link(f'/artifacts/{PAGE_FILE}')}) · "
        + (f"flow run {link_run(flow_run)}" if flow_run else "no flow run"),
    ]
    table = add_column_gaps(markdown.partition("\n\n")[2])
    if len(table) + sum(map(len, parts)) <= _NOTE_LIMIT:
        parts.append(table)
    return "\n\n".join(part for part in parts if part)
