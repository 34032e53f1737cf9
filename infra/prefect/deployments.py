"""The deployments, as data: what Prefect may run, where, when, and how many at once.

`handoff deploy` (`infra.commands.deploy`) makes a server hold exactly this. Work pools are of
type `process`, but for those whose runs get a pod each (`infra.prefect.pods`); a worker takes its
machine's settings from its environment, so that none of them is here.
"""

from __future__ import annotations

from dataclasses import dataclass

from handoff.artifacts.recipe.target import TARGETS
from handoff.flows.names import BUILD_POOL, CONTROL_POOL, RESUME_TAG, TAG, target_pool

# Light flows, which mostly wait; what compiles or times; and what has the hardware of a target.
TARGET_POOLS = {slug: target_pool(slug) for slug in TARGETS}
POOLS = {
    CONTROL_POOL: "Flows that wait for others: the nightly's parent, resuming, clean-up.",
    BUILD_POOL: "Flows that compile or time: releases, rebuilds, promotions. "
    "A worker shares its cores out among --limit runs at once.",
    **{pool: f"Machines that can run {slug}." for slug, pool in TARGET_POOLS.items()},
}

# Prefect's type of a pool whose runs get a pod each.
POD_TYPE = "kubernetes"
# Python of the worker's own environment, which `handoff worker` puts first on the PATH.
FLOW_RUN_COMMAND = "python -P -m handoff.infra.prefect.flow_run"


@dataclass(frozen=True)
class Schedule:
    """When a deployment runs by itself: a cron line in a named time zone."""

    cron: str
    time_zone: str


@dataclass(frozen=True)
class Deployment:
    """One flow that Prefect may run: `module.function`, in a pool.

    `limit` is how many of its runs may go at once, further ones wait; None for as many as there are
    workers. One with `resumes` is started again after a crash.
    """

    flow: str
    pool: str
    description: str
    name: str = TAG
    schedule: Schedule | None = None
    limit: int | None = None
    resumes: bool = False

    @property
    def tags(self) -> list[str]:
        """The tags of its runs, which the automations go by."""
        return [TAG, RESUME_TAG] if self.resumes else [TAG]


_CONFORMANCE = Deployment(
    "handoff.flows.conformance.conformance", BUILD_POOL,
    "Asks every operator of PyTorch's test suite what today's toolchain makes of it.",
    limit=1, resumes=True,
)  # fmt: skip


def deployments(nightly: Schedule, targets: tuple[str, ...] = ()) -> tuple[Deployment, ...]:
    """Return all deployments; `targets` are those whose hardware has a work pool of its own."""
    return (
        Deployment(
            "handoff.flows.release.release", BUILD_POOL,
            "Makes verified packages of a delivery and registers them, or says why not.",
            resumes=True,
        ),
        Deployment(
            "handoff.flows.nightly.recompile.recompile", CONTROL_POOL,
            "Rebuilds what is in production with today's toolchain, every night.",
            schedule=nightly, limit=1, resumes=True,
        ),
        Deployment(
            "handoff.flows.nightly.recompile.recompile_model", BUILD_POOL,
            "Rebuilds one model and compares it with what is served.",
            resumes=True,
        ),
        Deployment(
            "handoff.flows.promote.promote", BUILD_POOL,
            "Lets an alias point to another version, where the rules allow it.",
        ),
        _CONFORMANCE,
        Deployment(
            "handoff.flows.collect_garbage.collect_garbage", CONTROL_POOL,
            "Removes from the store what no version needs.",
            limit=1,
        ),
        Deployment(
            "handoff.flows.resume.resume", CONTROL_POOL,
            "Starts runs again that crashed; an automation calls it for one, the schedule for all.",
            schedule=Schedule("*/5 * * * *", "UTC"),
        ),
        Deployment(
            "handoff.flows.target.verify_on_target.verify_on_target", BUILD_POOL,
            "Compares a released package with its delivery again, on the worker's machine.",
        ),
        *(deployment for slug in targets for deployment in _target_deployments(slug)),
    )  # fmt: skip


def _target_deployments(slug: str) -> tuple[Deployment, Deployment]:
    pool = TARGET_POOLS[slug]
    return (
        Deployment(
            "handoff.flows.target.build_target.build_target", pool,
            f"Builds and blesses a release's package for {slug}, where it can run.",
            name=slug, resumes=True,
        ),
        Deployment(
            "handoff.flows.target.verify_on_target.verify_on_target", pool,
            f"Compares a released package for {slug} with its delivery again.",
            name=slug,
        ),
    )  # fmt: skip
