"""A release, and one that is refused, in Prefect's pages, with the way to MLflow and back."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.delivery.uri import strip_login
from handoff.artifacts.errors import (
    BlessingRefused,
    DeliveryUnreadable,
    DeliveryUnsound,
    HandoffError,
    NotShownYet,
    first_line,
)
from handoff.artifacts.host import HostSettings
from handoff.artifacts.mlflow.description import describe_taken_over, targets_table
from handoff.artifacts.mlflow.standalone_runs import Refusal, format_refusal
from handoff.artifacts.mlflow.tags import run_title
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, read_manifest
from handoff.flows.parameters import ReleaseParameters
from handoff.flows.steps import show_refused
from handoff.tasks.optimize.recipe_names import try_read_contract
from handoff.tasks.registry.transitions import open_registrar
from handoff.tasks.report.messages import ShowRefusedJob


def own_page(host: HostSettings) -> str:
    """Return the address of this run's page, or its id where no server keeps it."""
    address = flow_run.ui_url if host.has_server else None
    return str(address or flow_run.id or "")


def page_of(host: HostSettings, run: UUID) -> str:
    """Return the address of another run's page on the same server."""
    place, slash, _ = own_page(host).rpartition("/")
    return f"{place}{slash}{run}"


def name_run(name: str) -> None:
    """Name this run by what is known of it now; its flow's own name was given before."""
    if flow_run.id:
        with get_client(sync_client=True) as client:
            client.set_flow_run_name(UUID(flow_run.id), name[:200])


def mlflow_page(tracking_uri: str, place: str) -> str:
    """Return the address of a `place` in MLflow's pages, without a login; "" without a server."""
    parts = urlsplit(strip_login(tracking_uri))
    if parts.scheme not in ("http", "https"):
        return ""
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/{place}"


def show_released(
    host: HostSettings, manifest: Manifest, version: int, aliases: tuple[str, ...]
) -> None:
    """Show what was released: its figures, where it is, and the commands that use it."""
    name = f"{manifest.model}@{version}"
    known_as = " and ".join(f"@{alias}" for alias in aliases)
    page = mlflow_page(host.stores.tracking_uri, f"#/models/{manifest.model}")
    mlflow_link = (
        f"[In MLflow]({page}): the report, every version."
        if page
        else "`handoff ui` shows it in MLflow."
    )
    headline = f"**{name}** is released" + (f" as {known_as}." if known_as else ".")
    parts = (
        headline,
        targets_table(manifest),
        describe_taken_over(manifest),
        mlflow_link,
        f"```\nhandoff show {name}\nhandoff promote {name} --to production\n```",
        f"Delivery: {manifest.verdict}, `{manifest.delivery.short}`.",
    )
    _create_page(manifest.model, headline.replace("*", ""), parts)


def show_refusal(
    host: HostSettings, refusal: Refusal, manifest: Manifest | None, place: str
) -> None:
    """Show why nothing was released, and what to do.

    `manifest` is what was measured until then, `place` that of its run in MLflow's pages, or ''.
    """
    page = mlflow_page(host.stores.tracking_uri, place) if place else ""
    parts = (
        format_refusal(refusal),
        targets_table(manifest) if manifest and manifest.targets else "",
        f"[In MLflow]({page}): its report." if page else "",
    )
    _create_page(refusal.model, f"{refusal.title} was not released: {refusal.outcome}.", parts)


def _create_page(model: str, description: str, parts: Iterable[str]) -> None:
    create_markdown_artifact(
        # Prefect groups the reports of one key; it takes small letters, digits and dashes.
        key=f"release-{re.sub('[^a-z0-9]+', '-', model.lower()).strip('-')}",
        markdown="\n\n".join(part for part in parts if part) + "\n",
        description=description,
    )


# What is a verdict on the delivery or its package; what else ends a release says nothing of them.
REFUSALS = (BlessingRefused, DeliveryUnreadable, DeliveryUnsound)

LOGGER = logging.getLogger("handoff.release")


@dataclass
class ReleaseAttempt:
    """A release under way in `workspace`; `delivery` is its folder here, once there is one."""

    parameters: ReleaseParameters
    workspace: Path
    delivery: Path | None = None
    began: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    @property
    def release(self) -> Path:
        """The folder of what was made, with the record of what was measured."""
        return self.workspace / "release"

    def set_delivery(self, delivery: Path) -> Path:
        """Return the delivery's folder, and name the run by its model and commit."""
        self.delivery = delivery
        name_run(f"release {run_title(*self.title_parts)}")
        return delivery

    @property
    def title_parts(self) -> tuple[str, Lineage]:
        """The model and where it comes from, as far as that can be known before it is taken in."""
        contract = try_read_contract(self.delivery) if self.delivery else None
        if contract is None:
            return self.parameters.label_of_delivery, self.parameters.lineage
        try:
            return contract.model.name, contract.source.merge(self.parameters.lineage)
        except ValueError:
            # It says another commit than was announced, which is about to be refused.
            return contract.model.name, contract.source

    def refusal(self, error: HandoffError, page: str, manifest: Manifest | None) -> Refusal:
        """Return the refusal, named by the model and commit as far as they are known."""
        model, lineage = (manifest.model, manifest.lineage) if manifest else self.title_parts
        now = datetime.now(UTC).isoformat()
        record = error.as_record()
        return Refusal(model, lineage, record, self.began, now, flow_run.id or "", page)


@contextmanager
def report_refusals(
    host: HostSettings, parameters: ReleaseParameters, workspace: Path
) -> Iterator[ReleaseAttempt]:
    """Give the release that is attempted; what it is refused for is shown, and raised again.

    That it can't be shown is logged: the refusal stays what is raised. What fails for the machine's
    sake is no refusal, and is shown by the run's state alone.
    """
    attempt = ReleaseAttempt(parameters, workspace)
    try:
        yield attempt
    except NotShownYet:
        # It is released.
        raise
    except HandoffError as error:
        if not error.is_machine_fault:
            _show_refused(host, attempt, error)
        raise


def _show_refused(host: HostSettings, attempt: ReleaseAttempt, error: HandoffError) -> None:
    folder = attempt.release
    manifest = read_manifest(folder) if (folder / MANIFEST_FILE).exists() else None
    refusal = attempt.refusal(error, own_page(host), manifest)
    place = ""
    if isinstance(error, REFUSALS):
        job = ShowRefusedJob(host.stores, refusal, folder)
        try:
            with open_registrar(host) as (registrar, _):
                place = show_refused(registrar, job).place
        except HandoffError as trouble:
            LOGGER.warning("The refusal is not shown in MLflow: %s", first_line(trouble))
    try:
        show_refusal(host, refusal, manifest, place)
    except Exception as trouble:  # noqa: BLE001 - of whatever kind Prefect's is, the refusal is raised
        LOGGER.warning("The refusal is not shown in Prefect: %s", first_line(trouble))
