"""The automations end runs that nobody works on, repeat crashed ones, report failed nights."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from handoff.flows.names import RESUME_TAG, TAG
from handoff.infra.prefect.deployments import POD_TYPE

if TYPE_CHECKING:
    from prefect.events.schemas.automations import AutomationCore

# Of three heartbeats of 30 s one may be lost, and one late.
_HEARTBEAT_LIMIT = timedelta(seconds=120)
# A worker that has taken a run starts its process within seconds.
_START_LIMIT = timedelta(seconds=300)
# A pod may wait for a node that is made for it, and for an image of gigabytes.
_POD_START_LIMIT = timedelta(hours=1)
_HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDS = {f"prefect.flow-run.{end}" for end in ("Completed", "Failed", "Crashed", "Cancelled")}
_PENDING, _RUNNING = "prefect.flow-run.Pending", "prefect.flow-run.Running"
# What ends a run's process: a run may also go back to its pool (`flows.rescheduling`).
_PROCESS_ENDS = {*_ENDS, "prefect.flow-run.AwaitingRetry"}


def automations(resume: UUID) -> tuple[AutomationCore, ...]:
    """Return the automations that end runs nobody works on, and repeat those that crashed.

    A run whose machine was lost stays Running for ever else: Prefect asks nobody. `resume` is the
    deployment that repeats. Sources: `docs.prefect.io`, "Detect zombie flows", and what was
    measured: a run's tags come with each of its events.
    """
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState, RunDeployment
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    def tag_filter(tag: str) -> dict[str, str]:
        return {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{tag}"}

    def pool_filter(kind: str) -> dict[str, str]:
        return {"prefect.resource.role": "work-pool", "prefect.work-pool.type": kind}

    def silence_trigger(
        after: str, expect: set[str], within: timedelta, *related: dict[str, str]
    ) -> EventTrigger:
        return EventTrigger(
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related=[tag_filter(TAG), *related],
            for_each={"prefect.resource.id"}, posture=Posture.Proactive, threshold=1,
            after={after}, expect=expect, within=within,
        )  # fmt: skip

    def crash_action(message: str) -> ChangeFlowRunState:
        return ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", message=message)

    return (
        AutomationCore(
            name="handoff: end runs whose process is gone",
            description="A run without a heartbeat for 120 s has lost its process.",
            trigger=silence_trigger(_HEARTBEAT, {_HEARTBEAT, *_PROCESS_ENDS}, _HEARTBEAT_LIMIT),
            actions=[crash_action("No heartbeat: its process or its machine is gone.")],
        ),
        AutomationCore(
            name="handoff: end runs that never began",
            description="A run that a worker took, and that didn't begin within 300 s.",
            trigger=silence_trigger(
                _PENDING, {_RUNNING, *_ENDS}, _START_LIMIT, pool_filter(f"!{POD_TYPE}")
            ),
            actions=[crash_action("It never began: the worker that took it is gone.")],
        ),
        AutomationCore(
            name="handoff: end pods that never began",
            description="A run whose pod has not begun within an hour.",
            trigger=silence_trigger(
                _PENDING, {_RUNNING, *_ENDS}, _POD_START_LIMIT, pool_filter(POD_TYPE)
            ),
            actions=[
                crash_action("It never began: no node took its pod, or its image isn't there.")
            ],
        ),
        AutomationCore(
            name="handoff: end cancellations that nobody carries out",
            description="A run that is to be cancelled, and whose worker doesn't answer.",
            trigger=silence_trigger("prefect.flow-run.Cancelling", _ENDS, _START_LIMIT),
            actions=[
                ChangeFlowRunState(
                    state=StateType.CANCELLED, name="Cancelled", message="Its worker is gone.",
                    force=True,
                )
            ],
        ),
        AutomationCore(
            name="handoff: repeat runs that crashed",
            description="Each is started again in its own queue, at most twice.",
            trigger=EventTrigger(
                match={"prefect.resource.id": "prefect.flow-run.*"},
                match_related=tag_filter(RESUME_TAG),
                for_each={"prefect.resource.id"}, posture=Posture.Reactive, threshold=1,
                expect={"prefect.flow-run.Crashed"}, within=timedelta(0),
            ),
            # By the event alone: `flow_run` is looked up first, which failed on a busy server.
            actions=[
                RunDeployment(deployment_id=resume, parameters={"run": "{{ event.resource.id }}"})
            ],
        ),
    )  # fmt: skip


def notification(recompile: UUID, block: UUID) -> AutomationCore:
    """Return the automation that reports nights in which a model failed, through a block.

    `recompile` is the nightly's deployment, `block` one of Prefect's notification blocks, which
    keeps what is secret about it.
    """
    from prefect.events.actions import SendNotification
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    nightly = {
        "prefect.resource.role": "deployment",
        "prefect.resource.id": f"prefect.deployment.{recompile}",
    }
    return AutomationCore(
        name="handoff: tell of nights that failed",
        description="Sent when a nightly recompile ends as Failed or Crashed.",
        trigger=EventTrigger(
            match={"prefect.resource.id": "prefect.flow-run.*"}, match_related=nightly,
            for_each={"prefect.resource.id"}, posture=Posture.Reactive, threshold=1,
            expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"}, within=timedelta(0),
        ),
        actions=[
            SendNotification(
                block_document_id=block,
                subject="Handoff: the nightly {{ event.resource['prefect.state-name'] }}",
                body="{{ event.resource.name }}: {{ event.resource['prefect.state-message'] }}",
            )
        ],
    )  # fmt: skip
