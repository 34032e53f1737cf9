"""`handoff status`: what runs, where it is and where its log is, and whether it does its work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from handoff.artifacts.errors import EnvironmentLacking, HandoffError
from handoff.artifacts.waiting import poll_for
from handoff.infra.engine.environments import prepare_prefect
from handoff.infra.notifications.outbox import memory_file, read_memory
from handoff.infra.prefect.absences import Absence, fetch_absences
from handoff.infra.prefect.pools import is_online
from handoff.infra.servers import get_status, last_error_line
from handoff.infra.settings import read_settings
from handoff.infra.stack import arrivals, postgres
from handoff.infra.stack.layout import Stack, StackLayout
from handoff.infra.stack.supervision import Service, State, Supervision, read_service
from handoff.infra.terminal.console import print_json, print_table
from handoff.infra.terminal.output import echo

# A fresh database is migrated first, which took 20 s on two busy cores.
_LIMIT_S = 240.0
_TRIES = 3
# What tells people looks every 15 s; a server that is slow keeps it from that for a while.
_LOOKED_S = 180.0
_PAUSE_S = 0.25


def is_healthy(
    service: Service, stack: Stack, layout: StackLayout, login: str, started: float
) -> bool:
    """Return whether a service answers; `started` is when its process began, in s since 1970."""
    match service.name:
        case "postgres":
            return postgres.is_ready(layout)
        case "prefect":
            # That one asks the database, too.
            return get_status(f"{stack.prefect_api}/ready") == 200
        case "mlflow":
            return get_status(f"{stack.mlflow}/health") == 200
        case "s3":
            return get_status(f"{stack.s3_endpoint}/moto-api/") == 200
        case "tell":
            looked = read_memory(memory_file(layout.home)).looked
            return looked >= started and time.time() - looked < _LOOKED_S
        case arrivals.WEBHOOK:
            return get_status(f"{arrivals.webhook_address(stack)}/health") == 200
        case "metrics":
            return get_status(f"{stack.metrics_address}/metrics") == 200
        case name if name.startswith(arrivals.WATCH):
            # It has nothing to ask: its log tells what it can't see.
            return time.time() - started >= arrivals.SETTLED_S
        case _:
            return is_online(stack.prefect_api, login, service.pool, service.worker, started)


def wait_until_healthy(
    service: Service, supervision: Supervision, layout: StackLayout, ask: Callable[[float], bool]
) -> None:
    """Wait for a service; raise `EnvironmentLacking` with its last words when it doesn't come up.

    `ask` tells whether it is healthy, given when its process began.
    """
    starts: set[float] = set()
    for _ in poll_for(_LIMIT_S, _PAUSE_S):
        state = supervision.state(service.name)
        starts.add(state.started)
        if state.is_up and ask(state.started):
            return
        if len(starts) > _TRIES or state.status == "FATAL":
            break
    log = layout.logs / f"{service.name}.log"
    raise EnvironmentLacking(
        f"The service {service.name} doesn't come up", expected="it to answer",
        got=last_error_line(log) or "no word from it",
        remedy=f"Look into {log}, fix that, and run 'handoff up' again; 'handoff down' stops the "
        "rest",
    )  # fmt: skip


@dataclass(frozen=True)
class Condition:
    """How one service is: `healthy`, `starting`, `doesn't answer` or `down`, and its last word."""

    service: str
    state: str
    reason: str
    address: str
    process: int
    up_s: int
    log: str


def show_status(*, as_json: bool) -> int:
    """Print each service; return 0 when all of them are healthy, else 1."""
    settings = read_settings()
    prepare_prefect(settings)
    layout = StackLayout(settings.home)
    supervision = Supervision(layout)
    if not supervision.is_running():
        if as_json:
            print_json({"running": False, "services": []})
        else:
            echo("The stack isn't running: 'handoff up' starts it. It is for nightly runs and "
                 "triggers; 'handoff release' needs none.")  # fmt: skip
        return 1
    conditions = examine_stack(layout, supervision)
    print_stack(conditions, layout, as_json=as_json, absences=_read_absences(layout))
    return 0 if all(condition.state == "healthy" for condition in conditions) else 1


def examine_stack(layout: StackLayout, supervision: Supervision) -> list[Condition]:
    """Ask every service how it is."""
    stack = layout.read_stack()
    if stack is None:
        return []
    states = {state.name: state for state in supervision.states()}
    services = [read_service(layout.services / f"{name}.json") for name in states]
    login = _login(layout)
    return [
        _examine(service, states[service.name], stack, layout, login)
        for service in sorted(services, key=lambda service: (service.stage, service.name))
    ]


def _read_absences(layout: StackLayout) -> list[Absence]:
    """Return the workers that left their pool, on this machine or another one."""
    stack = layout.read_stack()
    try:
        return fetch_absences(stack.prefect_api, _login(layout)) if stack else []
    except HandoffError:
        # That the server does not answer is the state of its own service.
        return []


def _login(layout: StackLayout) -> str:
    """Return the login that the stack's workers have."""
    services = map(read_service, layout.services.glob("*.json"))
    return next((s.environment.get("PREFECT_API_AUTH_STRING", "") for s in services if s.pool), "")


def _examine(
    service: Service, state: State, stack: Stack, layout: StackLayout, login: str
) -> Condition:
    log = layout.logs / f"{service.name}.log"
    reason = ""
    if not state.is_up:
        condition, reason = "down", f"{state.status}: {last_error_line(log)}"
    elif is_healthy(service, stack, layout, login, state.started):
        condition = "healthy"
    else:
        condition = "starting" if state.status == "STARTING" else "doesn't answer"
    up_s = int(state.now - state.started) if state.is_up else 0
    where = f"pool {service.pool}" if service.pool else service.address
    return Condition(service.name, condition, reason, where, state.process, up_s, str(log))


def print_stack(
    conditions: Sequence[Condition],
    layout: StackLayout,
    *,
    as_json: bool,
    absences: Sequence[Absence] = (),
) -> None:
    """Print the services as a table, their store, and how the next commands come to use them.

    `absences` are workers that left their pool, and say why.
    """
    stack = layout.read_stack()
    store = stack.store if stack else ""
    if as_json:
        records = [asdict(condition) for condition in conditions]
        print_json(
            {
                "running": True, "services": records, "store": store,
                "environment": str(layout.environment), "left": [asdict(each) for each in absences],
            }
        )  # fmt: skip
        return
    print_table(
        "",
        ("service", "state", "where", "process", "log"),
        [
            (each.service, each.state, each.address, str(each.process or "-"), each.log)
            for each in conditions
        ],
    )
    for each in conditions:
        if each.reason:
            echo(f"{each.service} {each.reason}")
    for absence in absences:
        echo(str(absence))
    echo(f"Its store: {store}")
    echo("The commands that follow use it after:")
    echo(f"  . {layout.environment}")
    echo('or: eval "$(handoff up --print-environment)"')
