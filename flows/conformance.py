"""Conformance: what today's toolchain gets wrong, asked of every operator, signed and kept."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Any, cast

from prefect import flow

from handoff.artifacts.conformance.table import Conformance
from handoff.artifacts.host import HostSettings
from handoff.artifacts.recipe.target import CpuTarget, parse_target
from handoff.artifacts.record import to_plain
from handoff.flows import policies
from handoff.flows.host import host_settings
from handoff.flows.parameters import Attempt, ConformanceParameters
from handoff.flows.rescheduling import reschedule_machine_faults
from handoff.flows.steps import conform, keep_table, sign_table
from handoff.infra.engine.child import StepProcess
from handoff.tasks.conformance.messages import KeepTableJob
from handoff.tasks.conformance.running import Plan, Progress
from handoff.tasks.registry.messages import KeyJob
from handoff.tasks.registry.transitions import SIGNER, open_registrar

LOGGER = logging.getLogger("handoff.conformance")


@flow(**policies.CONFORMANCE)
def conformance(parameters: ConformanceParameters, attempt: Attempt = 1) -> dict[str, Any]:
    """Ask every operator, sign the table and keep it; return the table.

    A run that is begun again after a crash goes on where it was. With `operators`, only those are
    asked, and what comes out is returned and not kept.
    """
    host = host_settings()
    target = parse_target(parameters.target)
    assert isinstance(target, CpuTarget)
    with reschedule_machine_faults(host):
        table = make_conformance(host, target, tuple(parameters.operators), again=parameters.again)
    return cast(dict[str, Any], to_plain(table))


def make_conformance(
    host: HostSettings, target: CpuTarget, operators: tuple[str, ...] = (), *, again: bool = False
) -> Conformance:
    """Return the table of today's toolchain for `target`; it is kept unless it is of a few."""
    plan = Plan(
        target, {}, host.compiler, host.builds.parent / "conformance", operators, again=again
    )
    table = conform(plan, _log_progress)
    if operators:
        return table
    with (
        open_registrar(host) as (registrar, scratch),
        closing(StepProcess(SIGNER, scratch / "sign.log")) as signer,
    ):
        signer.run(KeyJob(host.key, host.stores.trusted))
        envelope = sign_table(signer, host, table)
        job = KeepTableJob(table, envelope, host.stores, scratch / "conformance")
        result = keep_table(registrar, job)
    if result.not_shown:
        LOGGER.warning("The table is kept, and not shown in MLflow: %s", result.not_shown)
    return table


def _log_progress(progress: Progress) -> None:
    LOGGER.info(
        "%d of %d operators and dtypes, about %.0f min left",
        progress.done, progress.total, progress.left_s / 60,
    )  # fmt: skip
