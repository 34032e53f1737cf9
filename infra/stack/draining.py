"""What builds on this machine's stack is let finish before the stack is stopped.

The pool is paused meanwhile, so that nothing more is taken. Light flows of the control pool aren't
waited for: they mostly wait for others themselves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from handoff.flows.names import BUILD_POOL
from handoff.infra.engine.environments import SERVICE_MARK, STACK_MARK
from handoff.infra.prefect.orphans import marked
from handoff.infra.prefect.pools import paused_pool
from handoff.infra.stack.place import Place
from handoff.infra.stack.services import read_service
from handoff.infra.stack.supervision import Supervision
from handoff.infra.terminal.echoing import echo

# Prefect's name for it, in the environment of the run's processes.
_RUN = "PREFECT__FLOW_RUN_ID"
_BUILD = "build"
_PAUSE_S = 0.5
_TOLD_S = 60.0


@contextmanager
def drained(place: Place, supervision: Supervision, timeout_s: float | None) -> Iterator[list[str]]:
    """Wait until what builds has ended, `timeout_s` seconds at most; give what hadn't by then.

    In the body the worker for builds is stopped, and its pool takes up again what comes: whoever
    starts the stack next finds it as it was.
    """
    service = place.services / f"{_BUILD}.json"
    stack = place.read_stack()
    if stack is None or not service.exists() or not running_builds(place):
        yield []
        return
    login = read_service(service).environment.get("PREFECT_API_AUTH_STRING", "")
    with paused_pool(stack.prefect_api, login, BUILD_POOL):
        left = _wait(place, timeout_s)
        supervision.stop(_BUILD)
    yield left


def _wait(place: Place, timeout_s: float | None) -> list[str]:
    began = told = time.monotonic()
    first = _names(running_builds(place))
    echo(f"Waiting for {first}. Ctrl-C leaves the stack up; --now ends them", err=True)
    while running := running_builds(place):
        now = time.monotonic()
        if timeout_s is not None and now - began >= timeout_s:
            return running
        if now - told >= _TOLD_S:
            told = now
            echo(f"Still waiting for {_names(running)}, for {now - began:.0f} s", err=True)
        time.sleep(_PAUSE_S)
    return []


def running_builds(place: Place) -> list[str]:
    """Return the ids of the flow runs that build on this stack, sorted."""
    found = marked(STACK_MARK, str(place.home)).values()
    return sorted({
        environment[_RUN] for environment in found
        if environment.get(SERVICE_MARK) == _BUILD and environment.get(_RUN)
    })  # fmt: skip


def _names(running: list[str]) -> str:
    return f"{len(running)} flow run{'s' * (len(running) != 1)} ({', '.join(running)})"
