"""A release in Prefect's pages: one report a run, with the way to MLflow and back."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run

from handoff.artifacts.delivery.uri import without_login
from handoff.artifacts.mlflow.description import as_code, taken_over, targets_table
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.site import Site


def own_page(site: Site) -> str:
    """Return the address of this run's page, or its id where no server keeps it."""
    address = flow_run.ui_url if site.has_server else None
    return str(address or flow_run.id or "")


def mlflow_page(tracking_uri: str, place: str) -> str:
    """Return the address of a `place` in MLflow's pages, without a login; "" without a server."""
    parts = urlsplit(without_login(tracking_uri))
    if parts.scheme not in ("http", "https"):
        return ""
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/{place}"


def show_released(site: Site, manifest: Manifest, version: int, aliases: tuple[str, ...]) -> None:
    """Show what was released: its figures, where it is, and the commands that use it."""
    name = f"{manifest.model}@{version}"
    known_as = " and ".join(f"@{alias}" for alias in aliases)
    page = mlflow_page(site.stores.tracking_uri, f"#/models/{manifest.model}")
    shown = (
        f"[In MLflow]({page}): the report, every version."
        if page
        else "`handoff ui` shows it in MLflow."
    )
    _show(
        manifest,
        f"**{name}** is released" + (f" as {known_as}." if known_as else "."),
        shown,
        f"```\nhandoff show {name}\nhandoff promote {name} --to production\n```",
    )


def show_refused(manifest: Manifest) -> None:
    """Show why nothing was released."""
    reasons = [
        f"- `{target.slug}`: {as_code(reason)}"
        for target in manifest.targets
        for reason in target.told_reasons[:5]
    ]
    _show(manifest, f"**{manifest.model}** was not released.", "\n".join(reasons))


def _show(manifest: Manifest, headline: str, *further: str) -> None:
    delivery = f"Delivery: {manifest.verdict}, `{manifest.delivery.short}`."
    parts = (headline, targets_table(manifest), taken_over(manifest), *further, delivery)
    create_markdown_artifact(
        # Prefect groups the reports of one key; it takes small letters, digits and dashes.
        key=f"release-{re.sub('[^a-z0-9]+', '-', manifest.model.lower()).strip('-')}",
        markdown="\n\n".join(part for part in parts if part) + "\n",
        description=headline.replace("*", ""),
    )
