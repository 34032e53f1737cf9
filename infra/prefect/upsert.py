"""One deployment, made on a Prefect server or brought up to date there.

What people set on the server is theirs: a schedule that was changed, added or removed, and a pause
stay as they are, unless it is asked to put them back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from handoff.infra.prefect.deployments import FLOW_RUN_COMMAND, Deployment, Schedule

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse
    from prefect.client.schemas.schedules import CronSchedule


@dataclass(frozen=True)
class HeldDeployment:
    """A deployment as the server holds it now; `schedules` are as people read them."""

    name: str
    id: UUID
    schedules: tuple[str, ...]
    is_paused: bool


def upsert(
    client: SyncPrefectClient, deployment: Deployment, *, resets: bool, in_pods: bool = False
) -> HeldDeployment:
    """Make the server hold `deployment`, and return what it holds.

    A new one gets its schedule. One that is there keeps its own and its pause, unless `resets`.
    With `in_pods` its runs get a pod each, which knows itself what to start.
    """
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.exceptions import ObjectNotFound
    from prefect.utilities.importtools import import_object

    flow = import_object(deployment.flow)
    name = f"{flow.name}/{deployment.name}"
    fields = _managed_fields(deployment, flow, in_pods=in_pods)
    try:
        existing = client.read_deployment_by_name(name)
    except ObjectNotFound:
        _create(client, deployment, flow, fields)
    else:
        # Creating it again, as Prefect's own 'deploy' does, would replace its schedules.
        client.update_deployment(existing.id, DeploymentUpdate(parameters={}, **fields))
        if resets:
            _reset_schedules(client, deployment, existing)
    return _to_held_deployment(name, client.read_deployment_by_name(name))


def set_schedule(client: SyncPrefectClient, name: str, schedule: Schedule) -> HeldDeployment:
    """Let this schedule be the only one of the deployment `name`; return what it holds then."""
    existing = client.read_deployment_by_name(name)
    _replace_schedules(client, existing, schedule)
    return _to_held_deployment(name, client.read_deployment_by_name(name))


def read_cron(client: SyncPrefectClient, name: str) -> Schedule | None:
    """Return the cron line of the deployment `name`; None where it has none, or several."""
    from prefect.client.schemas.schedules import CronSchedule

    schedules = [one.schedule for one in client.read_deployment_by_name(name).schedules]
    if len(schedules) != 1 or not isinstance(schedules[0], CronSchedule):
        return None
    return Schedule(schedules[0].cron, schedules[0].timezone or "UTC")


def _create(
    client: SyncPrefectClient, deployment: Deployment, flow: Any, fields: dict[str, Any]  # noqa: ANN401
) -> None:  # fmt: skip
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    schedules = []
    if deployment.schedule:
        cron = _cron(deployment.schedule)
        schedules.append(DeploymentScheduleCreate(schedule=cron, active=True, slug=deployment.name))
    client.create_deployment(
        flow_id=client.create_flow_from_name(flow.name),
        name=deployment.name,
        schedules=schedules,
        paused=False,
        **fields,
    )


def _managed_fields(deployment: Deployment, flow: Any, *, in_pods: bool) -> dict[str, Any]:  # noqa: ANN401
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
    from prefect.utilities.callables import parameter_schema

    # A run that waits is not lost, one that is refused is.
    queues = ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)
    return {
        "entrypoint": deployment.flow,
        "work_pool_name": deployment.pool,
        "description": deployment.description,
        "tags": deployment.tags,
        "concurrency_limit": deployment.limit,
        "concurrency_options": queues if deployment.limit else None,
        "parameter_openapi_schema": parameter_schema(flow).model_dump_for_openapi(),
        "enforce_parameter_schema": True,
        "job_variables": {} if in_pods else {"command": FLOW_RUN_COMMAND},
    }


def _reset_schedules(
    client: SyncPrefectClient, deployment: Deployment, existing: DeploymentResponse
) -> None:
    if existing.paused:
        client.resume_deployment(existing.id)
    if deployment.schedule:
        _replace_schedules(client, existing, deployment.schedule)
    else:
        for schedule in existing.schedules:
            client.delete_deployment_schedule(existing.id, schedule.id)


def _replace_schedules(
    client: SyncPrefectClient, existing: DeploymentResponse, schedule: Schedule
) -> None:
    """Set the new one first: a break leaves two rather than none."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate

    cron = _cron(schedule)
    own = next((entry for entry in existing.schedules if entry.slug == existing.name), None)
    if own:
        client.update_deployment_schedule(existing.id, own.id, active=True, schedule=cron)
    else:
        new = DeploymentScheduleCreate(schedule=cron, active=True, slug=existing.name)
        client.create_deployment_schedules(existing.id, [new])
    for other in existing.schedules:
        if own is None or other.id != own.id:
            client.delete_deployment_schedule(existing.id, other.id)


def _cron(schedule: Schedule) -> CronSchedule:
    from prefect.client.schemas.schedules import CronSchedule

    return CronSchedule(cron=schedule.cron, timezone=schedule.time_zone)


def _to_held_deployment(name: str, response: DeploymentResponse) -> HeldDeployment:
    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

    schedules = []
    for entry in response.schedules:
        schedule = entry.schedule
        if isinstance(schedule, CronSchedule):
            text = f"{schedule.cron} {schedule.timezone or 'UTC'}"
        elif isinstance(schedule, IntervalSchedule):
            text = f"every {schedule.interval}"
        else:
            text = str(getattr(schedule, "rrule", "never"))
        schedules.append(text if entry.active else f"{text} (off)")
    return HeldDeployment(name, response.id, tuple(schedules), bool(response.paused))
