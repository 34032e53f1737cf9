"""Verification on the hardware: a released package beside its delivery, where it is served."""

from __future__ import annotations

from pathlib import Path

from prefect import flow, task

from handoff.artifacts.host import HostSettings
from handoff.flows import policies
from handoff.flows.host import host_settings
from handoff.flows.parameters import VerifyParameters
from handoff.flows.rescheduling import reschedule_machine_faults
from handoff.infra.engine.workspaces import scratch_workspace
from handoff.tasks.registry.reverification import verify_released


@task(**policies.step("repeat comparison"))
def repeat_comparison(host: HostSettings, parameters: VerifyParameters, scratch: Path) -> str:
    """Pull the version and its delivery, and compare them again."""
    return verify_released(
        host.stores, parameters.model, parameters.version, parameters.target, scratch
    )


@flow(**policies.VERIFY_ON_TARGET)
def verify_on_target(parameters: VerifyParameters) -> str:
    """Compare a released package with its delivery on this machine; return what came out.

    Raises `PackageRefused` for one that isn't what was signed or doesn't fit this machine, and
    `BlessingRefused` where its numbers are not within the tolerance here.
    """
    host = host_settings()
    with reschedule_machine_faults(host), scratch_workspace(host.builds) as scratch:
        return repeat_comparison(host, parameters, scratch)
