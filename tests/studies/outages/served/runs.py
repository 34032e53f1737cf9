"""What Prefect's server says of the runs that a fault befell."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectHTTPStatusError

from tests.studies.outages.served.stack import ServedStack, wait

# Beyond the automations' 120 s and 300 s, a server that comes up anew, and the work itself.
_WELL_LIMIT_S = 2400.0
# A crash is answered within seconds; where the server has begun anew, Prefect 3.8.8 holds its event
# back for 15 minutes (see the README).
_REPEAT_S = 1000.0
_POLL_S = 2.0
_MOST_ATTEMPTS = 3


@dataclass(frozen=True)
class ObservedRun:
    """A run as it was seen last: which flow's, of which attempt, in which state, and when made.

    `tries` is how often it was begun: more than once where a worker gave it back to its pool.
    """

    id: str
    flow: str
    attempt: int
    state: str
    message: str
    model: str
    key: str
    created: float
    is_final: bool
    tries: int = 1


class Runs:
    """The runs of a stack that were made since this was opened."""

    def __init__(self, stack: ServedStack) -> None:
        """Note the runs that there are."""
        self._stack = stack
        self._flows: dict[str, str] = {}
        self._before: set[str] = set()
        self._before = {one.id for one in self.read() or []}

    def read(self) -> list[ObservedRun] | None:
        """Return the runs, the first one first; None where the server doesn't answer."""
        wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=["handoff"]))
        try:
            with self.client() as client:
                found = client.read_flow_runs(
                    flow_run_filter=wanted, sort=FlowRunSort.START_TIME_DESC, limit=200
                )
                seen = [self._observe(client, run) for run in found if not run.auto_scheduled]
        except (httpx.HTTPError, PrefectHTTPStatusError, OSError):
            return None
        return sorted((s for s in seen if s.id not in self._before), key=lambda s: s.created)

    def start(self, deployment: str, parameters: Mapping[str, Any]) -> UUID:
        """Start a run of a deployment; return its id."""
        with self.client() as client:
            found = client.read_deployment_by_name(deployment)
            made = client.create_flow_run_from_deployment(found.id, parameters=dict(parameters))
            return made.id

    def client(self) -> SyncPrefectClient:
        """Return Prefect's client for this stack."""
        settings = {"trust_env": False, "timeout": 30}
        return SyncPrefectClient(
            self._stack.api, auth_string=self._stack.login, httpx_settings=settings
        )

    def wait_until_still(self) -> list[ObservedRun]:
        """Return the runs once none is under way and every crash was answered."""
        still: dict[str, float] = {}

        def is_still() -> bool:
            runs = self.read()
            if runs is None or not runs or not all(run.is_final for run in runs):
                still.clear()
                return False
            since = still.setdefault(_stamp(runs), time.monotonic())
            # One that is never repeated is reported as wrong afterwards.
            patience = _REPEAT_S if is_owed(runs) else 2 * _POLL_S
            return time.monotonic() - since > patience

        try:
            wait("no run is under way", is_still, _WELL_LIMIT_S, _POLL_S)
        except TimeoutError as error:
            states = [(run.flow, run.attempt, run.state) for run in self.read() or []]
            raise TimeoutError(f"{error}: {states}") from error
        return self.read() or []

    def _observe(self, client: SyncPrefectClient, run: FlowRun) -> ObservedRun:
        flow = str(run.flow_id)
        if flow not in self._flows:
            self._flows[flow] = client.read_flow(run.flow_id).name
        model = next((t.removeprefix("model:") for t in run.tags if t.startswith("model:")), "")
        state = run.state
        return ObservedRun(
            str(run.id), self._flows[flow], int(run.parameters.get("attempt", 1)),
            (state.name or "") if state else "", (state.message or "") if state else "", model,
            run.idempotency_key or "", run.created.timestamp() if run.created else 0.0,
            state is not None and state.is_final(), run.run_count,
        )  # fmt: skip


def _stamp(runs: Iterable[ObservedRun]) -> str:
    return " ".join(f"{run.id}:{run.state}" for run in runs)


def is_owed(runs: Iterable[ObservedRun]) -> bool:
    """Return whether a run crashed that is to be repeated, and hasn't been yet."""
    runs = list(runs)
    keys = {run.key for run in runs}
    return any(
        run.state == "Crashed"
        and run.flow != "resume"
        and run.attempt < _MOST_ATTEMPTS
        and f"resume:{run.id}" not in keys
        for run in runs
    )


def format_states(runs: Iterable[ObservedRun], flow: str) -> str:
    """Return the states in which the flow's runs ended, in their order, for each model."""
    chains: dict[str, list[str]] = {}
    for run in runs:
        if run.flow == flow:
            chains.setdefault(run.model, []).append(run.state)
    return "; ".join(", ".join(states) for _, states in sorted(chains.items()))
