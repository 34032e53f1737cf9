"""`handoff deploy`: make a Prefect server hold our pools, deployments and automations.

All of it is an upsert by name: to run it again changes nothing, and fixes what was changed by hand,
but for schedules and pauses. Those are people's own (`infra.prefect.upsert`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import available_timezones

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.printable import one_line
from handoff.artifacts.recipe.gpu_generations import cuda_slug
from handoff.artifacts.recipe.target import TARGETS, CudaTarget, find_target
from handoff.flows.names import RECOMPILE, RESUME
from handoff.infra.engine.environments import prepare_prefect
from handoff.infra.prefect.automations import automations, notification
from handoff.infra.prefect.deployments import TARGET_POOLS, Deployment, Schedule, deployments
from handoff.infra.prefect.pods import read_pod_pools
from handoff.infra.prefect.pools import ensure_pools
from handoff.infra.prefect.prefect_api import explain_prefect_errors
from handoff.infra.prefect.upsert import HeldDeployment, read_cron, set_schedule, upsert
from handoff.infra.settings import prefect_login, read_settings
from handoff.infra.stack.joining import share_settings
from handoff.infra.terminal.console import print_json, print_table
from handoff.infra.terminal.output import echo

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_FIRST_CRON = "0 2 * * *"


@dataclass(frozen=True)
class ScheduleOptions:
    """What was said of when the night is to run: a cron line, a time zone; None for what wasn't."""

    cron: str | None = None
    time_zone: str | None = None

    def schedule(self, current: Schedule | None) -> Schedule:
        """Return the schedule that this means, where the server has `current` so far."""
        before = current or Schedule(_FIRST_CRON, _local_time_zone())
        return Schedule(self.cron or before.cron, self.time_zone or before.time_zone)


def _local_time_zone() -> str:
    """Return the time zone of this process where it has one with a name, else UTC."""
    zone = os.environ.get("TZ", "")
    return zone if zone in available_timezones() else "UTC"


def deploy(
    night: ScheduleOptions, targets: tuple[str, ...], pods: Path | None = None, *, notify: str,
    resets: bool, as_json: bool,
) -> None:  # fmt: skip
    """Apply everything to the server that `PREFECT_API_URL` names, and print what there is.

    A nightly that the server knows keeps of its schedule what `night` doesn't say. `pods` is a file
    of PodTemplates: the runs of the pools that they name get a pod each, and a pool of a target's
    is had without its being named. `notify` names the notification block, `TYPE/NAME`, that failed
    nights are reported through. `resets` puts schedules and pauses back.
    """
    settings = read_settings()
    if settings.is_embedded:
        raise EnvironmentLacking(
            "deployments need a Prefect server", expected="PREFECT_API_URL", got="nothing",
            remedy="Start one with 'handoff up', or name yours",
        )  # fmt: skip
    for target in targets:
        _require_pool(target)
    in_pods = read_pod_pools(pods) if pods else {}
    targets = tuple(
        slug for slug, pool in TARGET_POOLS.items() if slug in targets or pool in in_pods
    )
    first = _require_schedule(night.schedule(None))
    prepare_prefect(settings)
    declared = deployments(first, targets)
    with explain_prefect_errors("the deployments", "what it can hold", "Then run it again"):
        deployed = apply(declared, notify, night, resets=resets, in_pods=in_pods)
    share_settings(settings, prefect_login(), os.environ)
    _print_deployments(declared, deployed, settings.prefect_api, as_json=as_json)


def _require_pool(target: str) -> None:
    """Raise `UsageProblem` for what is no target, or one that several kinds of machines serve."""
    if target in TARGETS:
        return
    several = find_target(target)
    if isinstance(several, CudaTarget):
        options = " ".join(f"--target {cuda_slug([member])}" for member in several.members)
        raise UsageProblem(
            "that is no target of one pool", expected="a target for one GPU", got=target[:40],
            remedy=f"Write {options}: a package for several GPUs is built in the pool of any",
        )  # fmt: skip
    raise UsageProblem(
        "that is no target", expected=f"one of {', '.join(TARGETS)}", got=target[:40],
        remedy="Fix --target",
    )  # fmt: skip


def _print_deployments(
    declared: tuple[Deployment, ...],
    deployed: dict[str, HeldDeployment],
    server: str,
    *,
    as_json: bool,
) -> None:
    if as_json:
        records = [
            {
                "name": deployment.name, "id": str(deployment.id),
                "schedules": list(deployment.schedules), "paused": deployment.is_paused,
            }
            for deployment in deployed.values()
        ]  # fmt: skip
        print_json({"deployments": records})
        return
    rows = [
        (
            deployment.name, specification.pool, one_line(", ".join(deployment.schedules)) or "-",
            str(specification.limit or "-"), "paused" if deployment.is_paused else "",
        )
        for deployment, specification in zip(deployed.values(), declared, strict=True)
    ]  # fmt: skip
    print_table("", ("deployment", "work pool", "when", "at once", ""), rows)
    night = deployed[RECOMPILE]
    when = one_line(" and ".join(night.schedules)) or "never: it has no schedule"
    echo(f"applied to {server}; the nightly runs at {when}")
    paused = [deployment.name for deployment in deployed.values() if deployment.is_paused]
    if paused:
        names = ", ".join(paused)
        echo(f"Somebody paused {names}, and so it stays; 'handoff deploy --reset' ends that")


def _require_schedule(schedule: Schedule) -> Schedule:
    from prefect.client.schemas.schedules import CronSchedule

    try:
        CronSchedule(cron=schedule.cron, timezone=schedule.time_zone)
    except ValueError as error:
        raise UsageProblem(
            "that is no schedule", expected="a cron line, and a time zone such as Europe/Berlin",
            got=f"{schedule.cron!r} in {schedule.time_zone!r}"[:120],
            remedy="Fix --cron or --time-zone",
        ) from error  # fmt: skip
    return schedule


def apply(
    declared: tuple[Deployment, ...],
    notify: str = "",
    night: ScheduleOptions | None = None,
    *,
    resets: bool = False,
    in_pods: Mapping[str, dict[str, Any]] = MappingProxyType({}),
) -> dict[str, HeldDeployment]:
    """Make the server hold the pools, deployments and automations; return them by full name.

    Schedules and pauses that it holds stay, but for what `night` says, and unless it `resets`.
    `in_pods` are the base job templates of the pools whose runs get a pod each.
    """
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    # A server that isn't there is reported within seconds.
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}),
        get_client(sync_client=True) as client,
    ):
        pods = ensure_pools(client, {one.pool: None for one in declared}, in_pods)
        upserted = (
            upsert(client, each, resets=resets, in_pods=each.pool in pods) for each in declared
        )
        deployed = {one.name: one for one in upserted}
        if night and night != ScheduleOptions() and not resets:
            chosen = night.schedule(read_cron(client, RECOMPILE))
            deployed[RECOMPILE] = set_schedule(client, RECOMPILE, chosen)
        _upsert_automations(client, {name: one.id for name, one in deployed.items()}, notify)
    return deployed


def _upsert_automations(client: SyncPrefectClient, ids: dict[str, UUID], notify: str) -> None:
    notifications = [notification(ids[RECOMPILE], _find_block(client, notify))] if notify else []
    for automation in (*automations(ids[RESUME]), *notifications):
        existing = client.read_automations_by_name(automation.name)
        if existing:
            # What isn't named stays as it was: one that was switched off would stay that.
            enabled = automation.model_copy(update={"enabled": True})
            client.update_automation(existing[0].id, enabled)
        else:
            client.create_automation(automation)


def _find_block(client: SyncPrefectClient, name: str) -> UUID:
    """Return the notification block `TYPE/NAME`; raise `UsageProblem` where there is none."""
    from prefect.exceptions import ObjectNotFound

    kind, _, block_name = name.partition("/")
    try:
        return client.read_block_document_by_name(block_name or "-", kind).id
    except ObjectNotFound as error:
        raise UsageProblem(
            "Prefect's server has no such block", expected="TYPE/NAME of a notification block, "
            "such as slack-webhook/team", got=name[:100],
            remedy="Make one in Prefect's UI under Blocks; it keeps the address",
        ) from error  # fmt: skip
