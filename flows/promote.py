"""A promotion: an alias comes to stand for another version, where the rules let it."""

from __future__ import annotations

from typing import Any

from prefect import flow, task
from prefect.runtime import flow_run

from handoff.artifacts.host import HostSettings
from handoff.artifacts.record import to_plain
from handoff.flows import policies
from handoff.flows.host import host_settings
from handoff.flows.parameters import PromoteParameters
from handoff.flows.rescheduling import reschedule_machine_faults
from handoff.tasks.registry import transitions
from handoff.tasks.registry.append import AppendResult
from handoff.tasks.registry.changes import Author


@task(**policies.step("move alias"))
def move_alias(
    host: HostSettings, promotion: transitions.Promotion, author: Author
) -> AppendResult:
    """Time the version beside the one that is served, and append the promotion to the ledger."""
    return transitions.promote(host, promotion, author)


@flow(**policies.PROMOTE)
def promote(parameters: PromoteParameters) -> dict[str, Any]:
    """Make an alias point to a version; return the ledger's entry.

    Raises `BlessingRefused` for a rule of the recipe's [promotion] that it breaks.
    """
    host = host_settings()
    author = Author(parameters.by or host.by, parameters.reason.strip(), flow_run.id or "")
    promotion = transitions.Promotion(
        parameters.model,
        parameters.version,
        parameters.alias,
        parameters.override,
        narrower=parameters.narrower,
        new_alias=parameters.new_alias,
    )
    with reschedule_machine_faults(host):
        appended = move_alias(host, promotion, author)
    return {
        "model": parameters.model,
        "version": appended.version,
        "entry": to_plain(appended.entry),
    }
