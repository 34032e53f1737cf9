"""Whether each service does what it is for: asked over its own interface, not by its process."""

from __future__ import annotations

import time
from collections.abc import Callable

from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.waiting import looks
from handoff.infra.prefect.pools import is_online
from handoff.infra.servers import get_status, last_words
from handoff.infra.stack import arrivals, postgres
from handoff.infra.stack.place import Place, Stack
from handoff.infra.stack.services import Service
from handoff.infra.stack.supervision import Supervision
from handoff.infra.telling.outbox import memory_file, read_memory

# A fresh database is migrated first, which took 20 s on two busy cores.
_LIMIT_S = 240.0
_TRIES = 3
# What tells people looks every 15 s; a server that is slow keeps it from that for a while.
_LOOKED_S = 180.0
_PAUSE_S = 0.25


def is_healthy(service: Service, stack: Stack, place: Place, login: str, started: float) -> bool:
    """Tell whether a service answers; `started` is when its process began, in s since 1970."""
    match service.name:
        case "postgres":
            return postgres.answers(place)
        case "prefect":
            # That one asks the database, too.
            return get_status(f"{stack.prefect_api}/ready") == 200
        case "mlflow":
            return get_status(f"{stack.mlflow}/health") == 200
        case "s3":
            return get_status(f"{stack.s3_endpoint}/moto-api/") == 200
        case "tell":
            looked = read_memory(memory_file(place.home)).looked
            return looked >= started and time.time() - looked < _LOOKED_S
        case arrivals.WEBHOOK:
            return get_status(f"{arrivals.webhook_address(stack)}/health") == 200
        case name if name.startswith(arrivals.WATCH):
            # It has nothing to ask: its log tells what it can't see.
            return time.time() - started >= arrivals.SETTLED_S
        case _:
            return is_online(stack.prefect_api, login, service.pool, service.worker, started)


def wait_until_healthy(
    service: Service, supervision: Supervision, place: Place, ask: Callable[[float], bool]
) -> None:
    """Wait for a service; raise `EnvironmentLacking` with its last words when it doesn't come up.

    `ask` tells whether it is healthy, given when its process began.
    """
    starts: set[float] = set()
    for _ in looks(_LIMIT_S, _PAUSE_S):
        state = supervision.state(service.name)
        starts.add(state.started)
        if state.is_up and ask(state.started):
            return
        if len(starts) > _TRIES or state.status == "FATAL":
            break
    log = place.logs / f"{service.name}.log"
    raise EnvironmentLacking(
        f"The service {service.name} doesn't come up", expected="it to answer",
        got=last_words(log) or "no word from it",
        remedy=f"Look into {log}, mend that, and run 'handoff up' again; 'handoff down' stops the "
        "rest",
    )  # fmt: skip
