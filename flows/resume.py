"""Repeat runs that crashed: their process was killed, or their machine was lost.

An automation starts this for each run with the tag `handoff-resume` that Prefect holds to have
crashed. Every few minutes a schedule starts it for all of them: a server that was restarted holds
events back for a quarter of an hour whose predecessors it has not seen since (Prefect 3.8.8,
`server/events/ordering/memory.py`), and forgets them when it is restarted again. What was finished
isn't done again: compiled packages are found in the machine's cache, versions by their fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.logging import get_run_logger
from pydantic import Field

from handoff.flows import policies
from handoff.flows.children import MOST_ATTEMPTS, attempt_of, successor
from handoff.flows.names import RESUME_TAG

ALL = "all"
# A run's id, or the name that events have for it.
Run = Annotated[
    str,
    Field(
        pattern=rf"^(prefect\.flow-run\.)?[0-9a-f-]{{36}}$|^{ALL}$",
        description=f"The run that crashed; {ALL} for those that did within a day.",
    ),
]
# What crashed before is nobody's concern any more.
_LATELY = timedelta(days=1)
_PAGE = 200


@flow(**policies.RESUME)
def resume(run: Run = ALL) -> list[str]:
    """Start a crashed run again, in its own queue, or all that crashed; return what was done.

    Each is started at most twice again, and once for one crash, however often this is asked.
    """
    logger = get_run_logger()
    with get_client(sync_client=True) as client:
        if run == ALL:
            lines = [_repeat(client, crashed) for crashed in _find_crashed(client)]
        else:
            lines = [_repeat(client, client.read_flow_run(UUID(run.rpartition(".")[2])))]
    for line in lines:
        logger.info(line)
    return lines


def _find_crashed(client: SyncPrefectClient) -> Iterator[FlowRun]:
    """Give the runs that crashed lately, may be repeated, and were not."""
    run_filter = FlowRunFilter(
        tags=FlowRunFilterTags(all_=[RESUME_TAG]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CRASHED])),
        end_time=FlowRunFilterEndTime(after_=datetime.now(UTC) - _LATELY),
    )
    for crashed in client.read_flow_runs(flow_run_filter=run_filter, limit=_PAGE):
        if attempt_of(crashed) < MOST_ATTEMPTS and successor(client, crashed) is None:
            yield crashed


def _repeat(client: SyncPrefectClient, crashed: FlowRun) -> str:
    """Start a run again; return what was done, or why not."""
    attempt = attempt_of(crashed)
    if crashed.state is None or not crashed.state.is_crashed() or crashed.deployment_id is None:
        return f"{crashed.name} has not crashed, and is left alone"
    if attempt >= MOST_ATTEMPTS:
        return f"{crashed.name} crashed {attempt} times, and is given up"
    again = client.create_flow_run_from_deployment(
        crashed.deployment_id,
        parameters={**crashed.parameters, "attempt": attempt + 1},
        tags=crashed.tags,
        name=crashed.name,
        idempotency_key=f"resume:{crashed.id}",
        work_queue_name=crashed.work_queue_name,
        parent_task_run_id=crashed.parent_task_run_id,
    )
    return f"{crashed.name} crashed: attempt {attempt + 1} of {MOST_ATTEMPTS} is {again.name}"
