"""`handoff deploy`: make a Prefect server hold our pools, deployments and automations.

All of it is an upsert by name: to run it again changes nothing, and mends what was changed by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.recipe.target import TARGETS
from handoff.flows.names import RECOMPILE, RESUME
from handoff.infra.engine.environments import prepare_prefect
from handoff.infra.prefect.automations import automations, notification
from handoff.infra.prefect.deployments import (
    FLOW_RUN_COMMAND,
    Deployment,
    Schedule,
    deployments,
)
from handoff.infra.prefect.pools import ensure_pools
from handoff.infra.prefect.prefect_api import told_in_sentences
from handoff.infra.settings import read_settings
from handoff.infra.terminal.console import print_json, print_table
from handoff.infra.terminal.echoing import echo

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


def deploy(
    cron: str, time_zone: str, targets: tuple[str, ...], *, notify: str, as_json: bool
) -> None:
    """Apply everything to the server that `PREFECT_API_URL` names, and tell what there is.

    `notify` names the notification block, `TYPE/NAME`, that failed nights are told through.
    """
    settings = read_settings()
    if settings.is_embedded:
        raise EnvironmentLacking(
            "deployments need a Prefect server", expected="PREFECT_API_URL", got="nothing",
            remedy="Start one with 'handoff up', or name yours",
        )  # fmt: skip
    for target in targets:
        if target not in TARGETS:
            raise UsageProblem(
                "that is no target", expected=f"one of {', '.join(TARGETS)}", got=target[:40],
                remedy="Mend --target",
            )  # fmt: skip
    nightly = _require_schedule(cron, time_zone)
    prepare_prefect(settings)
    wanted = deployments(nightly, targets)
    with told_in_sentences("the deployments", "what it can hold", "Then run it again"):
        ids = apply(wanted, notify)
    if as_json:
        print_json({"deployments": [{"name": name, "id": str(key)} for name, key in ids.items()]})
        return
    rows = [
        (name, one.pool, one.schedule.cron if one.schedule else "-", str(one.limit or "-"))
        for name, one in zip(ids, wanted, strict=True)
    ]
    print_table("", ("deployment", "work pool", "cron", "at once"), rows)
    echo(f"applied to {settings.prefect_api}; the nightly runs at {cron} ({time_zone})")


def _require_schedule(cron: str, time_zone: str) -> Schedule:
    from prefect.client.schemas.schedules import CronSchedule

    try:
        CronSchedule(cron=cron, timezone=time_zone)
    except ValueError as error:
        raise UsageProblem(
            "that is no schedule", expected="a cron line, and a time zone such as Europe/Berlin",
            got=f"{cron!r} in {time_zone!r}"[:120], remedy="Mend --cron or --time-zone",
        ) from error  # fmt: skip
    return Schedule(cron, time_zone)


def apply(wanted: tuple[Deployment, ...], notify: str = "") -> dict[str, UUID]:
    """Make the server hold the pools, deployments and automations; return ids by full name."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    # A server that isn't there is told of within seconds.
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 1}),
        get_client(sync_client=True) as client,
    ):
        ensure_pools(client, {one.pool: None for one in wanted})
        ids = dict(_apply_one(client, one) for one in wanted)
        told = [notification(ids[RECOMPILE], _block(client, notify))] if notify else []
        for automation in (*automations(ids[RESUME]), *told):
            held = client.read_automations_by_name(automation.name)
            if held:
                # What isn't named stays as it was: one that was switched off would stay that.
                enabled = automation.model_copy(update={"enabled": True})
                client.update_automation(held[0].id, enabled)
            else:
                client.create_automation(automation)
    return ids


def _block(client: SyncPrefectClient, name: str) -> UUID:
    """Return the notification block `TYPE/NAME`; raise `UsageProblem` where there is none."""
    from prefect.exceptions import ObjectNotFound

    kind, _, own = name.partition("/")
    try:
        return client.read_block_document_by_name(own or "-", kind).id
    except ObjectNotFound as error:
        raise UsageProblem(
            "Prefect's server has no such block", expected="TYPE/NAME of a notification block, "
            "such as slack-webhook/team", got=name[:100],
            remedy="Make one in Prefect's UI under Blocks; it keeps the address",
        ) from error  # fmt: skip


def _apply_one(client: SyncPrefectClient, wanted: Deployment) -> tuple[str, UUID]:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
    from prefect.client.schemas.schedules import CronSchedule
    from prefect.utilities.callables import parameter_schema

    flow = _load(wanted.flow)
    schedules = []
    if wanted.schedule:
        cron = CronSchedule(cron=wanted.schedule.cron, timezone=wanted.schedule.time_zone)
        schedules.append(DeploymentScheduleCreate(schedule=cron, active=True, slug=wanted.name))
    # A run that waits is not lost, one that is refused is.
    queues = ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.ENQUEUE)
    made = client.create_deployment(
        flow_id=client.create_flow_from_name(flow.name),
        name=wanted.name,
        entrypoint=wanted.flow,
        work_pool_name=wanted.pool,
        description=wanted.description,
        tags=wanted.tags,
        schedules=schedules,
        concurrency_limit=wanted.limit,
        concurrency_options=queues if wanted.limit else None,
        parameter_openapi_schema=parameter_schema(flow).model_dump_for_openapi(),
        enforce_parameter_schema=True,
        job_variables={"command": FLOW_RUN_COMMAND},
        paused=False,
    )
    return f"{flow.name}/{wanted.name}", made


def _load(path: str) -> Any:  # noqa: ANN401 - a flow, whose parameters are its own
    from prefect.utilities.importtools import import_object

    return import_object(path)
