"""Flow runs that a flow starts elsewhere and waits for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterIdempotencyKey,
)
from prefect.client.schemas.objects import FlowRun, WorkerStatus
from prefect.exceptions import ObjectNotFound

from handoff.artifacts.errors import EnvironmentLacking

_POLL_S = 2.0
# The first run and two more: what kills three of them would kill a fourth.
MOST_ATTEMPTS = 3
# What crashed is started again within seconds, or by what looks for it every five minutes.
PATIENCE_S = 480.0
_MOST_KEYS = 20
_PAGE = 200
_STARTED_AT_ONCE = 8
_POLLED_PER_S = 50


@dataclass(frozen=True)
class ChildRun:
    """A run to start: of which deployment, with what, under which key, so that it is one run."""

    deployment: UUID
    key: str
    parameters: Mapping[str, Any]
    tags: tuple[str, ...] = ()
    name: str | None = None


def read_deployment(client: SyncPrefectClient, name: str) -> UUID:
    """Return the deployment `flow/name`; raise `EnvironmentLacking` where there is none."""
    try:
        return client.read_deployment_by_name(name).id
    except ObjectNotFound as error:
        raise EnvironmentLacking(
            "Prefect's server lacks a deployment", expected=name, got="none",
            remedy="Run 'handoff deploy' once for that server",
        ) from error  # fmt: skip


def find_deployment(client: SyncPrefectClient, name: str) -> UUID | None:
    """Return the deployment `flow/name` if a worker that is online can run it, else None."""
    try:
        deployment = client.read_deployment_by_name(name)
    except ObjectNotFound:
        return None
    if deployment.work_pool_name is None:
        return None
    workers = client.read_workers_for_work_pool(deployment.work_pool_name)
    is_online = any(worker.status == WorkerStatus.ONLINE for worker in workers)
    return deployment.id if is_online else None


def start(client: SyncPrefectClient, child: ChildRun) -> FlowRun:
    """Start the run, or return the one with its key, unless that ended without success.

    Then a further one is started, under the next key.
    """
    for attempt in range(1, _MOST_KEYS):
        key = child.key if attempt == 1 else f"{child.key}:{attempt}"
        run = client.create_flow_run_from_deployment(
            child.deployment,
            parameters=dict(child.parameters),
            idempotency_key=key,
            tags=child.tags,
            name=child.name,
        )
        # What was made or found is reported as it is now; only a crashed one is asked for more.
        current = follow(client, run)
        if not _has_failed(current):
            return run
    raise RuntimeError(f"{child.key} has ended without success {_MOST_KEYS - 1} times")


def _has_failed(run: FlowRun) -> bool:
    """Return whether a run ended without success; one that crashed may be about to be repeated."""
    if run.state is None or not run.state.is_final() or run.state.is_completed():
        return False
    return not run.state.is_crashed() or attempt_of(run) >= MOST_ATTEMPTS


def start_all(client: SyncPrefectClient, children: Iterable[ChildRun]) -> list[FlowRun]:
    """Start many runs, some at a time; return them in the order of `children`.

    A server that is busy with those which run already answers a request in a second or two: one
    after the other, workers would wait for what is handed out.
    """
    with ThreadPoolExecutor(_STARTED_AT_ONCE) as pool:
        return list(pool.map(lambda child: start(client, child), children))


def wait_for(runs: Iterable[FlowRun], limit_s: float) -> dict[UUID, FlowRun]:
    """Return how each run ended, or where it is when `limit_s` seconds are over, by its id.

    A run that crashed and was started again ends as the last one of these.
    """
    deadline = time.monotonic() + limit_s
    pending = {run.id: run for run in runs}
    ended: dict[UUID, FlowRun] = {}
    crashed: dict[UUID, float] = {}
    with get_client(sync_client=True) as client:
        while pending and time.monotonic() < deadline:
            now = _read_runs(client, [run.id for run in pending.values()])
            for first, before in list(pending.items()):
                pending[first] = follow(client, now.get(before.id, before))
                if _has_ended(pending[first], crashed):
                    ended[first] = pending.pop(first)
            if pending:
                # What many runs are asked about costs the server something.
                time.sleep(_POLL_S + len(pending) / _POLLED_PER_S)
    return {**pending, **ended}


def follow(client: SyncPrefectClient, run: FlowRun) -> FlowRun:
    """Return the run, or what took its place after a crash."""
    return newest(client, run) if run.state is not None and run.state.is_crashed() else run


def _has_ended(run: FlowRun, crashed: dict[UUID, float]) -> bool:
    """Return whether a run is over for good; `crashed` says since when each has been crashed."""
    if run.state is None or not run.state.is_final():
        return False
    if run.state.is_completed() or _has_failed(run):
        return True
    return time.monotonic() - crashed.setdefault(run.id, time.monotonic()) > PATIENCE_S


def _read_runs(client: SyncPrefectClient, ids: list[UUID]) -> dict[UUID, FlowRun]:
    """Return the runs as they are now, by their ids."""
    runs = {}
    for place in range(0, len(ids), _PAGE):
        run_filter = FlowRunFilter(id=FlowRunFilterId(any_=ids[place : place + _PAGE]))
        for run in client.read_flow_runs(flow_run_filter=run_filter, limit=_PAGE):
            runs[run.id] = run
    return runs


def newest(client: SyncPrefectClient, run: FlowRun) -> FlowRun:
    """Return a run as it is now, or the one that was started in its place after it crashed."""
    run = client.read_flow_run(run.id)
    while run.state is not None and run.state.is_crashed():
        again = successor(client, run)
        if again is None:
            break
        run = again
    return run


def successor(client: SyncPrefectClient, run: FlowRun) -> FlowRun | None:
    """Return the run that was started in the place of one that crashed (`flows.resume`)."""
    key = FlowRunFilterIdempotencyKey(any_=[f"resume:{run.id}"])
    runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(idempotency_key=key), limit=1)
    return runs[0] if runs else None


def attempt_of(run: FlowRun) -> int:
    """Return how often a run was started: 1 for one that takes no crashed one's place."""
    return int(run.parameters.get("attempt", 1))
