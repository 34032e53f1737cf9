"""Evidence: what is written about a release for people, beside its record."""

from __future__ import annotations

from artifacts.manifest import Manifest
from tasks.plots import pictures
from tasks.report import render
from tasks.report_page import render_page


def evidence(manifest: Manifest) -> dict[str, bytes]:
    """Return each file's name and bytes: the report in Markdown and as a page, and its pictures.

    The same record gives the same bytes with the same matplotlib.
    """
    drawn = dict(pictures(manifest))
    report = render(manifest)
    page = render_page(report, {name: data.decode() for name, data in drawn.items()})
    return {"report.md": report.encode(), "report.html": page.encode(), **drawn}
