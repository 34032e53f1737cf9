"""A release in Prefect's pages: one report a run, with the way to MLflow and back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit
from uuid import UUID

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from handoff.artifacts.delivery.uri import without_login
from handoff.artifacts.mlflow.description import taken_over, targets_table
from handoff.artifacts.mlflow.refusals import Refusal, told_refusal
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.site import Site


def own_page(site: Site) -> str:
    """Return the address of this run's page, or its id where no server keeps it."""
    address = flow_run.ui_url if site.has_server else None
    return str(address or flow_run.id or "")


def page_of(site: Site, run: UUID) -> str:
    """Return the address of another run's page on the same server."""
    place, slash, _ = own_page(site).rpartition("/")
    return f"{place}{slash}{run}"


def name_run(name: str) -> None:
    """Name this run by what is known of it now; its flow's own name was given before."""
    if flow_run.id:
        with get_client(sync_client=True) as client:
            client.set_flow_run_name(UUID(flow_run.id), name[:200])


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


def show_refusal(site: Site, refusal: Refusal, manifest: Manifest | None, place: str) -> None:
    """Show why nothing was released, and what to do.

    `manifest` is what was measured until then, `place` that of its run in MLflow's pages, or ''.
    """
    page = mlflow_page(site.stores.tracking_uri, place) if place else ""
    parts = (
        told_refusal(refusal),
        targets_table(manifest) if manifest and manifest.targets else "",
        f"[In MLflow]({page}): its report." if page else "",
    )
    _write(refusal.model, f"{refusal.title} was not released: {refusal.outcome}.", parts)


def _show(manifest: Manifest, headline: str, *further: str) -> None:
    delivery = f"Delivery: {manifest.verdict}, `{manifest.delivery.short}`."
    parts = (headline, targets_table(manifest), taken_over(manifest), *further, delivery)
    _write(manifest.model, headline.replace("*", ""), parts)


def _write(model: str, description: str, parts: Iterable[str]) -> None:
    create_markdown_artifact(
        # Prefect groups the reports of one key; it takes small letters, digits and dashes.
        key=f"release-{re.sub('[^a-z0-9]+', '-', model.lower()).strip('-')}",
        markdown="\n\n".join(part for part in parts if part) + "\n",
        description=description,
    )
