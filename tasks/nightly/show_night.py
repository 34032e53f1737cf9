"""Show a night: keep its record, draw the table, the page and the trends, and log it in MLflow."""

from __future__ import annotations

from handoff.artifacts.mlflow.description import linked_run, with_gaps
from handoff.artifacts.mlflow.registry import Catalogue
from handoff.artifacts.nightly.night import read_nights, write_night
from handoff.artifacts.stores.opening import open_store
from handoff.tasks.nightly.messages import ShowNightJob, ShownNight
from handoff.tasks.nightly.night_page import headline, render_night, render_night_page, text_table
from handoff.tasks.nightly.trends import trends

_LAST = 60
# Of more models only those that something happened to are drawn.
_MOST_PICTURES = 24
# MLflow takes 8000 characters (3.17, `MAX_TAG_VAL_LENGTH`); a table of more is read as a page.
_NOTE_LIMIT = 6000


def run(job: ShowNightJob) -> ShownNight:
    """Keep and show the night; one that is kept already, since its run was repeated, as it is.

    Raises `StoreFailed` and `RegistryFailed`; what is kept by then stays.
    """
    store, night = open_store(job.stores.objects), job.night
    nights = read_nights(store, _LAST)
    if kept := [one for one in nights if one.stamp == night.stamp]:
        (night,) = kept
    else:
        write_night(store, night)
        nights = (*nights, night)
    is_small = len(night.rows) <= _MOST_PICTURES
    models = [row.model for row in night.rows] if is_small else night.eventful
    pictures = dict(trends(nights, models))
    folder = job.folder
    (folder / "trends").mkdir(parents=True, exist_ok=True)
    for name, data in pictures.items():
        (folder / "trends" / name).write_bytes(data)
    (folder / "night.html").write_text(render_night_page(night, pictures), encoding="utf-8")
    markdown = render_night(night)
    (folder / "night.md").write_text(markdown, encoding="utf-8")
    (folder / "night.json").write_bytes(night.to_bytes())
    catalogue = Catalogue(job.stores.tracking_uri, job.stores.artifact_root)
    # MLflow sets the second line of a long heading upon its first.
    whole = with_gaps(markdown.removeprefix("# "))
    short = whole if len(whole) <= _NOTE_LIMIT else f"{headline(night)}: see `night.html`.\n"
    address = catalogue.log_night(
        night, short + (f"\nFlow run: {linked_run(job.flow_run)}\n" if job.flow_run else ""), folder
    )
    return ShownNight(headline(night), text_table(night), markdown, address.link())
