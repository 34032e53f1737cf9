"""A night's look at its toolchain: what it gets wrong that the one before got right."""

from __future__ import annotations

import time
from collections.abc import Iterable

from prefect.client.orchestration import get_client

from handoff.artifacts.conformance.table import Conformance, told_changes
from handoff.artifacts.errors import HandoffError, first_line
from handoff.artifacts.recipe.target import CpuTarget, host_cpu_flags
from handoff.artifacts.site import Site
from handoff.flows import policies
from handoff.flows.children import Child, find_deployment, start, wait_for
from handoff.flows.conformance import make_conformance
from handoff.flows.names import CONFORMANCE
from handoff.flows.steps import read_tables
from handoff.infra.engine.child import StepProcess
from handoff.tasks.conformance.messages import ReadTablesJob, Tables
from handoff.tasks.nightly.messages import Surveyed


def conform_tonight(
    site: Site, registrar: StepProcess, surveyed: Iterable[Surveyed], stamp: str
) -> tuple[str, ...]:
    """Return what today's toolchain breaks and mends of the one before, in sentences.

    A table that is missing for a target of the night's models is made, by a worker where there is
    a stack. One that is there costs a look into the store. What can't be made stops no night: it is
    told.
    """
    targets = {
        target: None for one in surveyed for target in one.recipe.resolved_targets()
        if isinstance(target, CpuTarget) and target.cpu_flags <= host_cpu_flags()
    }  # fmt: skip
    told: list[str] = []
    for target in targets:
        try:
            told += _conform(site, registrar, target, stamp)
        except HandoffError as error:
            told.append(f"{target.slug}: its operators could not be asked: {first_line(error)}")
    return tuple(told)


def _conform(site: Site, registrar: StepProcess, target: CpuTarget, stamp: str) -> tuple[str, ...]:
    tables = _read(site, registrar, target)
    # One that comes with the code is signed and shown once, too, which asks nothing again.
    if tables.today is None or tables.today.unasked or not tables.is_kept:
        made = _make(site, registrar, target, stamp)
        if made is None:
            return (f"{target.slug}: no worker has asked its operators",)
        tables = Tables(made, tables.before)
    if tables.today is None or tables.before is None:
        return ()
    return told_changes(tables.before, tables.today)


def _read(site: Site, registrar: StepProcess, target: CpuTarget) -> Tables:
    return read_tables(
        registrar, ReadTablesJob(site.stores, site.compiler, target, time.time()), target.slug
    )


def _make(site: Site, registrar: StepProcess, target: CpuTarget, stamp: str) -> Conformance | None:
    """Return the table that is made now, here or by a worker; None where none of them has."""
    if not site.is_worker:
        return make_conformance(site, target)
    with get_client(sync_client=True) as client:
        deployment = find_deployment(client, CONFORMANCE)
        if deployment is None:
            return None
        wanted = {"parameters": {"target": target.slug}}
        key = f"conformance:{stamp}:{target.slug}"
        run = start(
            client,
            Child(deployment, key, wanted, (f"night:{stamp}",), f"conformance of {target.slug}"),
        )
    wait_for([run], policies.WAITS_S["conformance"])
    return _read(site, registrar, target).today
