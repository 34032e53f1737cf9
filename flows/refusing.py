"""A release that is refused is shown where people look: on its run's page, and in MLflow."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from prefect.runtime import flow_run

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.errors import (
    BlessingRefused,
    DeliveryUnreadable,
    DeliveryUnsound,
    HandoffError,
    NotShownYet,
    first_line,
)
from handoff.artifacts.mlflow.refusals import Refusal
from handoff.artifacts.mlflow.tags import run_title
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, read_manifest
from handoff.artifacts.site import Site
from handoff.flows.parameters import ReleaseParameters
from handoff.flows.showing import name_run, own_page, show_refusal
from handoff.flows.steps import show_refused
from handoff.tasks.optimize.recipe_names import contract_in
from handoff.tasks.registry.moving import opened_registrar
from handoff.tasks.report.messages import ShowRefusedJob

# What is a verdict on the delivery or its package; what else ends a release says nothing of them.
REFUSALS = (BlessingRefused, DeliveryUnreadable, DeliveryUnsound)

LOGGER = logging.getLogger("handoff.release")


@dataclass
class Attempted:
    """A release under way in `workspace`; `delivery` is its folder here, once there is one."""

    parameters: ReleaseParameters
    workspace: Path
    delivery: Path | None = None
    began: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    @property
    def release(self) -> Path:
        """The folder of what was made, with the record of what was measured."""
        return self.workspace / "release"

    def know(self, delivery: Path) -> Path:
        """Return the delivery's folder, and name the run by its model and commit."""
        self.delivery = delivery
        name_run(f"release {run_title(*self.named)}")
        return delivery

    @property
    def named(self) -> tuple[str, Lineage]:
        """The model and where it comes from, as far as that can be known before it is taken in."""
        contract = contract_in(self.delivery) if self.delivery else None
        if contract is None:
            return self.parameters.label_of_delivery, self.parameters.said
        try:
            return contract.model.name, contract.source.completed(self.parameters.said)
        except ValueError:
            # It says another commit than was announced, which is about to be refused.
            return contract.model.name, contract.source

    def refused_by(self, error: HandoffError, page: str, manifest: Manifest | None) -> Refusal:
        """Return the refusal, named by the model and commit as far as they are known."""
        model, lineage = (manifest.model, manifest.lineage) if manifest else self.named
        now = datetime.now(UTC).isoformat()
        record = error.as_record()
        return Refusal(model, lineage, record, self.began, now, flow_run.id or "", page)


@contextmanager
def refusals_shown(
    site: Site, parameters: ReleaseParameters, workspace: Path
) -> Iterator[Attempted]:
    """Give the release that is attempted; what it is refused for is shown, and raised again.

    That it can't be shown is logged: the refusal stays what is raised.
    """
    attempted = Attempted(parameters, workspace)
    try:
        yield attempted
    except NotShownYet:
        # It is released.
        raise
    except HandoffError as error:
        _show(site, attempted, error)
        raise


def _show(site: Site, attempted: Attempted, error: HandoffError) -> None:
    folder = attempted.release
    manifest = read_manifest(folder) if (folder / MANIFEST_FILE).exists() else None
    refusal = attempted.refused_by(error, own_page(site), manifest)
    place = ""
    if isinstance(error, REFUSALS):
        job = ShowRefusedJob(site.stores, refusal, folder)
        try:
            with opened_registrar(site) as (registrar, _):
                place = show_refused(registrar, job).place
        except HandoffError as trouble:
            LOGGER.warning("The refusal is not shown in MLflow: %s", first_line(trouble))
    try:
        show_refusal(site, refusal, manifest, place)
    except Exception as trouble:  # noqa: BLE001 - of whatever kind Prefect's is, the refusal is raised
        LOGGER.warning("The refusal is not shown in Prefect: %s", first_line(trouble))
