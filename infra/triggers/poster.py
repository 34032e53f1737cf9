"""Post an arrival to Prefect as a run of `release/handoff`: one run for one commit."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.waiting import Backoff
from handoff.flows.names import BUILD_POOL, RELEASE
from handoff.infra.engine.environments import prepare_prefect
from handoff.infra.prefect.prefect_api import ServerBusy, explain_prefect_errors
from handoff.infra.settings import Settings
from handoff.infra.triggers.arrival import Arrival, Policy

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

_TIMEOUT_S = 10.0
# A server on SQLite answers 503 while its database is locked, which takes seconds under load.
_PATIENCE_S = 20.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
# A commit that has been posted so often has another trouble than a lost run.
_MOST_ATTEMPTS = 32
# Somebody may remove a queue, or take its limit away.
_QUEUE_KNOWN_S = 60.0

_LATER = "The nightly catches up on a commit that isn't announced, or 'handoff notify' later"


@dataclass(frozen=True)
class PostedRun:
    """The run for an arrival; `is_new` where this post made it.

    `state` is Prefect's name, such as `Scheduled` or `Running`, and `message` what it says to it.
    """

    name: str
    id: UUID
    state: str
    is_new: bool
    attempt: int
    address: str
    message: str = ""
    superseded: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether the run does nothing any more."""
        return self.state in ("Completed", "Failed", "Crashed", "Cancelled")


class Poster:
    """Posts arrivals to one Prefect server; for one thread at a time."""

    def __init__(self, client: SyncPrefectClient) -> None:
        """Use an open client."""
        self._client = client
        self._queues: dict[str, float] = {}
        self._deployment: UUID | None = None

    def post(
        self, arrival: Arrival, *, policy: Policy = "queue", again: bool = False, once: bool = False
    ) -> PostedRun:
        """Return the run for `arrival`, new or posted before.

        A run that crashed or was cancelled is followed by another attempt, unless `once` forbids
        it; one that completed or was refused only with `again`. With `supersede`, older runs of
        the model that haven't ended are cancelled. Raises `EnvironmentLacking`, or `UsageProblem`
        for what the server refuses.
        """
        pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, limit_s=_PATIENCE_S)
        while True:
            try:
                return self._post_once(arrival, policy, again=again, once=once)
            except ServerBusy:
                if pauses.are_over:
                    raise
            # Nothing is posted twice by it: the key is the same.
            pauses.take()

    def _post_once(self, arrival: Arrival, policy: Policy, *, again: bool, once: bool) -> PostedRun:
        from prefect.exceptions import PrefectHTTPStatusError

        with translate_prefect_errors():
            try:
                return self._find_or_create(arrival, policy, again=again, once=once)
            except PrefectHTTPStatusError as error:
                if self._deployment is None or error.response.status_code != 404:
                    raise
            # The server's database was made again since it was asked: what is remembered of it is
            # of the one before.
            self._deployment = None
            self._queues.clear()
            return self._find_or_create(arrival, policy, again=again, once=once)

    def _find_or_create(
        self, arrival: Arrival, policy: Policy, *, again: bool, once: bool
    ) -> PostedRun:
        self._ensure_queue(arrival.queue)
        attempt = 1
        run, is_new = self._create(arrival, attempt)
        if not is_new:
            run, attempt = self._find_last(arrival, run)
            if once or not _may_follow(run, again=again):
                return self._make_result(run, attempt, is_new=False)
            attempt += 1
            run, is_new = self._create(arrival, attempt)
        posted = self._make_result(run, attempt, is_new=is_new)
        if is_new and policy == "supersede" and arrival.model:
            return replace(posted, superseded=tuple(self._supersede(arrival, run)))
        return posted

    def follow(self, posted: PostedRun) -> PostedRun:
        """Return how the run is now, or the one that repeats it after a crash."""
        with translate_prefect_errors():
            run = self._latest(self._client.read_flow_run(posted.id))
            return self._make_result(run, posted.attempt, is_new=posted.is_new)

    def _deployment_id(self) -> UUID:
        if self._deployment is None:
            self._deployment = self._client.read_deployment_by_name(RELEASE).id
        return self._deployment

    def _find_last(self, arrival: Arrival, first: FlowRun) -> tuple[FlowRun, int]:
        """Return the run that was posted last for the arrival's key, and how many there were."""
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey

        keys = [_attempt_key(arrival, attempt) for attempt in range(1, _MOST_ATTEMPTS + 1)]
        run_filter = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=keys[1:]))
        runs = self._client.read_flow_runs(flow_run_filter=run_filter)
        by_key = {run.idempotency_key: run for run in runs}
        last = max((number for number, key in enumerate(keys, 1) if key in by_key), default=1)
        if last == _MOST_ATTEMPTS:
            raise UsageProblem(
                f"{arrival.label} was posted {_MOST_ATTEMPTS} times", expected="fewer",
                got="as many", remedy="Look at its runs, and fix what ends them",
            )  # fmt: skip
        return self._latest(by_key.get(keys[last - 1], first)), last

    def _latest(self, run: FlowRun) -> FlowRun:
        """Return the run that repeats a crashed one (`flows.resume`), or the run itself."""
        from handoff.flows.children import follow

        return follow(self._client, run)

    def _ensure_queue(self, name: str) -> None:
        """Make the model's queue, through which one run goes at a time."""
        from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

        if not name or time.monotonic() - self._queues.get(name, -_QUEUE_KNOWN_S) < _QUEUE_KNOWN_S:
            return
        try:
            queue = self._client.read_work_queue_by_name(name, work_pool_name=BUILD_POOL)
        except ObjectNotFound:
            # Another arrival may have made it just now.
            with suppress(ObjectAlreadyExists):
                self._client.create_work_queue(
                    name, concurrency_limit=1, work_pool_name=BUILD_POOL,
                    description="One commit of this model after the other.",
                )  # fmt: skip
        else:
            if queue.concurrency_limit is None:
                self._client.update_work_queue(queue.id, concurrency_limit=1)
        self._queues[name] = time.monotonic()

    def _create(self, arrival: Arrival, attempt: int) -> tuple[FlowRun, bool]:
        # Prefect doesn't say whether it made the run: by its name it is known again. Once it
        # begins, the flow names it without that.
        name = f"release {arrival.label}, posted {secrets.token_hex(4)}"
        run = self._client.create_flow_run_from_deployment(
            self._deployment_id(),
            name=name,
            parameters=arrival.parameters(),
            tags=arrival.tags,
            idempotency_key=_attempt_key(arrival, attempt),
            work_queue_name=arrival.queue or None,
        )
        return run, run.name == name

    def _supersede(self, arrival: Arrival, newest: FlowRun) -> Iterator[str]:
        """Cancel what was posted for the model before `newest`; give the names."""
        from prefect.client.schemas.filters import (
            FlowRunFilter,
            FlowRunFilterDeploymentId,
            FlowRunFilterState,
            FlowRunFilterStateType,
            FlowRunFilterTags,
        )
        from prefect.client.schemas.objects import State, StateType
        from prefect.states import Cancelled, Cancelling

        active = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED]
        run_filter = FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=[self._deployment_id()]),
            tags=FlowRunFilterTags(all_=[f"model:{arrival.model}"]),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=active)),
        )
        message = f"superseded by {arrival.label}"
        for run in self._client.read_flow_runs(flow_run_filter=run_filter):
            if run.id == newest.id or not _is_older(run, newest) or run.state is None:
                continue
            # A process ends itself and what it started; where there is none yet it is over.
            is_active = run.state.is_running() or run.state.is_paused()
            state: State[Any] = (Cancelling if is_active else Cancelled)(message=message)
            self._client.set_flow_run_state(run.id, state)
            yield run.name

    def _make_result(self, run: FlowRun, attempt: int, *, is_new: bool) -> PostedRun:
        base = str(self._client.api_url).rstrip("/").removesuffix("/api")
        state, message = (run.state.name or "", run.state.message or "") if run.state else ("", "")
        return PostedRun(
            run.name, run.id, state, is_new, attempt, f"{base}/runs/flow-run/{run.id}", message
        )


@contextmanager
def open_poster(settings: Settings) -> Iterator[Poster]:
    """Give a poster to the server that `PREFECT_API_URL` names; nothing is asked yet."""
    if settings.is_embedded:
        raise EnvironmentLacking(
            "a new commit is announced to a Prefect server",
            expected="PREFECT_API_URL", got="nothing",
            remedy="Start one with 'handoff up', or name yours",
        )  # fmt: skip
    prepare_prefect(settings, retries=1)
    from prefect.client.orchestration import get_client

    with get_client(httpx_settings={"timeout": _TIMEOUT_S}, sync_client=True) as client:
        yield Poster(client)


def _attempt_key(arrival: Arrival, attempt: int) -> str:
    return arrival.key if attempt == 1 else f"{arrival.key}:{attempt}"


def _may_follow(run: FlowRun, *, again: bool) -> bool:
    """Return whether another attempt may follow `run`.

    What was refused is refused again: that is asked for, or it doesn't happen.
    """
    if run.state is None or not run.state.is_final():
        return False
    return again or run.state.is_crashed() or run.state.is_cancelled()


def _is_older(run: FlowRun, newest: FlowRun) -> bool:
    if run.created is None or newest.created is None:
        return False
    return (run.created, str(run.id)) < (newest.created, str(newest.id))


@contextmanager
def translate_prefect_errors() -> Iterator[None]:
    """Turn what Prefect's client raises into sentences."""
    from prefect.exceptions import ObjectNotFound

    try:
        with explain_prefect_errors("the run", "parameters that its form takes", _LATER):
            yield
    except ObjectNotFound as error:
        raise EnvironmentLacking(
            "the Prefect server has no deployment that takes commits",
            expected=f"the deployment {RELEASE} and the work pool {BUILD_POOL}",
            got="none of that name", remedy="Run 'handoff deploy' once",
        ) from error  # fmt: skip
