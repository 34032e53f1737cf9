"""Garbage collection: what no version needs leaves the store."""

from __future__ import annotations

from typing import Annotated, Any, cast

from prefect import flow, task
from pydantic import Field

from handoff.artifacts.host import HostSettings
from handoff.artifacts.record import to_plain
from handoff.flows import policies
from handoff.flows.host import host_settings
from handoff.flows.rescheduling import reschedule_machine_faults
from handoff.tasks import steps
from handoff.tasks.registry.messages import CollectJob, CollectResult
from handoff.tasks.registry.transitions import open_registrar


@task(**policies.step(steps.COLLECT.name))
def collect(host: HostSettings, grace_h: float, pretend: bool) -> CollectResult:
    """Remove what isn't needed and is old enough."""
    with open_registrar(host) as (registrar, _):
        return registrar.run(CollectJob(host.stores, grace_h, pretend))


@flow(**policies.COLLECT_GARBAGE)
def collect_garbage(
    older_than_h: Annotated[float, Field(ge=24, description="Newer objects stay.")] = 24.0,
    pretend: Annotated[bool, Field(description="Only tell what would be removed.")] = False,
) -> dict[str, Any]:
    """Remove from the store what no version needs; return how much that was."""
    host = host_settings()
    with reschedule_machine_faults(host):
        result = collect(host, older_than_h, pretend)
    return cast(dict[str, Any], to_plain(result))
