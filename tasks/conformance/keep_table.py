"""Keep a conformance table in the store, once its signature was verified, and show it in MLflow."""

from __future__ import annotations

from handoff.artifacts.conformance.keeping import keep_table, read_table
from handoff.artifacts.conformance.table import KeepTableJob, KeptTable
from handoff.artifacts.errors import RegistryFailed, first_line
from handoff.artifacts.mlflow.description import with_gaps
from handoff.artifacts.mlflow.registry import Catalogue
from handoff.artifacts.release.signing import read_trust
from handoff.artifacts.stores.opening import open_store
from handoff.tasks.conformance.page import render_table
from handoff.tasks.report.standalone import render_page

# What MLflow takes of a description (3.17, `MAX_TAG_VAL_LENGTH` is 8000).
_NOTE_LIMIT = 6000


def run(job: KeepTableJob) -> KeptTable:
    """Write the table and its signature, read them back as everybody does, and log it in MLflow.

    Raises `PackageRefused` for a signature that isn't trusted here, and `StoreFailed`. That MLflow
    can't be reached is told in the result: the table is kept by then.
    """
    store = open_store(job.stores.objects)
    key = keep_table(store, job.table, job.envelope.encode())
    read_table(store, read_trust(job.stores.trusted, may_lack=True), job.table.digest)
    text = render_table(job.table)
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / "conformance.md").write_text(text, encoding="utf-8")
    (job.folder / "conformance.html").write_text(render_page(text, {}), encoding="utf-8")
    (job.folder / "conformance.json").write_bytes(job.table.to_bytes())
    note = with_gaps(text.removeprefix("# "))
    if len(note) > _NOTE_LIMIT:
        note = text.partition("\n\n|")[0].removeprefix("# ") + "\n\nSee `conformance.html`.\n"
    catalogue = Catalogue(job.stores.tracking_uri, job.stores.artifact_root)
    try:
        address = catalogue.log_conformance(job.table, note, job.folder)
    except RegistryFailed as error:
        return KeptTable(key, not_shown=first_line(error))
    return KeptTable(key, address.link())
