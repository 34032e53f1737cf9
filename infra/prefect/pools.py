"""Prefect's work pools, of the type process: made where they are missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from handoff.infra.prefect.deployments import POOLS

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


def ensure_pools(client: SyncPrefectClient, names: Iterable[str]) -> None:
    """Make the pools that are missing; leave the others as they are."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
    from prefect.workers.process import ProcessWorker

    for name in names:
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            pool = WorkPoolCreate(
                name=name, type="process", description=POOLS.get(name),
                base_job_template=ProcessWorker.get_default_base_job_template(),
            )  # fmt: skip
            try:
                client.create_work_pool(pool)
            except ObjectAlreadyExists:
                continue  # somebody was quicker, such as a worker that starts
