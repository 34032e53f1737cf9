"""Evidence: what is written about a release for people, beside its record."""

from __future__ import annotations

from handoff.artifacts.release.layout import REPORT_FILE
from handoff.artifacts.release.manifest import Manifest
from handoff.tasks.report.page import render_release


def evidence(manifest: Manifest) -> dict[str, bytes]:
    """Return each file's name and bytes: the report as a page, which holds its pictures.

    The same record gives the same bytes with the same Matplotlib and Jinja2.
    """
    return {REPORT_FILE: render_release(manifest).encode()}
