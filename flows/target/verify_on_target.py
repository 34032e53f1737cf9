"""Verification on the hardware: a released package beside its delivery, where it is served."""

from __future__ import annotations

from pathlib import Path

from prefect import flow, task

from handoff.artifacts.site import Site
from handoff.flows import policies
from handoff.flows.handing_back import handed_back
from handoff.flows.parameters import VerifyParameters
from handoff.flows.site import here
from handoff.infra.engine.workspaces import scratch_workspace
from handoff.tasks.registry.repeating import verify_released


@task(**policies.step("repeat comparison"))
def repeat_comparison(site: Site, parameters: VerifyParameters, scratch: Path) -> str:
    """Pull the version and its delivery, and compare them again."""
    return verify_released(
        site.stores, parameters.model, parameters.version, parameters.target, scratch
    )


@flow(**policies.VERIFY_ON_TARGET)
def verify_on_target(parameters: VerifyParameters) -> str:
    """Compare a released package with its delivery on this machine; return what came out.

    Raises `PackageRefused` for one that isn't what was signed or doesn't fit this machine, and
    `BlessingRefused` where its numbers are not within the tolerance here.
    """
    site = here()
    with handed_back(site), scratch_workspace(site.builds) as scratch:
        return repeat_comparison(site, parameters, scratch)
