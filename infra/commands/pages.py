"""Pages that commands write: one file of HTML each, which needs no server and no network."""

from __future__ import annotations

from pathlib import Path

from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.files.whole_file import write_whole
from handoff.artifacts.nightly.night import read_nights
from handoff.artifacts.release.ledger import LedgerEntry
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.release.releases import Releases
from handoff.infra.home import whole_path
from handoff.infra.terminal.echoing import echo

_BEGINS = "<!doctype html>"
# A page of more is neither read nor fetched in a moment.
_VERSIONS_SHOWN = 60
_NIGHTS_SHOWN = 60


def write_difference(page: Path, before: tuple[str, Manifest], after: tuple[str, Manifest]) -> None:
    """Write a page of what differs between two versions, each with its name."""
    from handoff.tasks.report.versions_page import NamedVersion, render_difference

    _write(page, render_difference(NamedVersion(*before), NamedVersion(*after)))


def write_history(page: Path, releases: Releases, entries: tuple[LedgerEntry, ...]) -> None:
    """Write a page of a model over time; `entries` are its ledger's, oldest first."""
    from handoff.tasks.report.versions_page import render_history

    model, kept = entries[-1].model, entries[-1].kept[-_VERSIONS_SHOWN:]
    versions = {
        version: releases.read(model, releases.find(model, version)).manifest for version in kept
    }
    nights = read_nights(releases.store, _NIGHTS_SHOWN)
    _write(page, render_history(model, entries, versions, nights))


def _write(page: Path, text: str) -> None:
    path = whole_path(page)
    try:
        is_another = path.exists() and not path.read_bytes()[:100].startswith(_BEGINS.encode())
        if not is_another:
            write_whole(path, text, mode=0o644)
    except OSError as error:
        raise UsageProblem(
            f"the page can't be written to {page}", expected="a file in a folder that is there",
            got=error.strerror or str(error), remedy="Name another file with --html",
        ) from error  # fmt: skip
    if is_another:
        raise UsageProblem(
            f"{page} is there already", expected="a new file, or an earlier page",
            got="a file that is no page", remedy="Name another file with --html; it was left alone",
        )  # fmt: skip
    echo(f"The page is in {page}")
