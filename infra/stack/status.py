"""`handoff status`: what runs, whether it is healthy, where it is, and where its log is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from handoff.infra.engine.environments import prepare_prefect
from handoff.infra.servers import last_words
from handoff.infra.settings import read_settings
from handoff.infra.stack.health import is_healthy
from handoff.infra.stack.place import Place, Stack
from handoff.infra.stack.services import Service, read_service
from handoff.infra.stack.supervision import State, Supervision
from handoff.infra.terminal.console import print_json, print_table
from handoff.infra.terminal.echoing import echo


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
    place = Place(settings.home)
    supervision = Supervision(place)
    if not supervision.is_running():
        if as_json:
            print_json({"running": False, "services": []})
        else:
            echo("The stack doesn't run. 'handoff up' starts it.")
        return 1
    conditions = examine_stack(place, supervision)
    print_stack(conditions, place, as_json=as_json)
    return 0 if all(condition.state == "healthy" for condition in conditions) else 1


def examine_stack(place: Place, supervision: Supervision) -> list[Condition]:
    """Ask every service how it is."""
    stack = place.read_stack()
    if stack is None:
        return []
    states = {state.name: state for state in supervision.states()}
    services = [read_service(place.services / f"{name}.json") for name in states]
    login = next((s.environment.get("PREFECT_API_AUTH_STRING", "") for s in services if s.pool), "")
    return [
        _examine(service, states[service.name], stack, place, login)
        for service in sorted(services, key=lambda service: (service.stage, service.name))
    ]


def _examine(service: Service, state: State, stack: Stack, place: Place, login: str) -> Condition:
    log = place.logs / f"{service.name}.log"
    reason = ""
    if not state.is_up:
        word, reason = "down", f"{state.status}: {last_words(log)}"
    elif is_healthy(service, stack, place, login, state.started):
        word = "healthy"
    else:
        word = "starting" if state.status == "STARTING" else "doesn't answer"
    up_s = int(state.now - state.started) if state.is_up else 0
    where = f"pool {service.pool}" if service.pool else service.address
    return Condition(service.name, word, reason, where, state.process, up_s, str(log))


def print_stack(conditions: Sequence[Condition], place: Place, *, as_json: bool) -> None:
    """Print the services as a table, their store, and how the next commands come to use them."""
    stack = place.read_stack()
    store = stack.store if stack else ""
    if as_json:
        records = [asdict(condition) for condition in conditions]
        print_json(
            {
                "running": True, "services": records, "store": store,
                "environment": str(place.environment),
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
    echo(f"Its store: {store}")
    echo("The commands that follow use it after:")
    echo(f"  . {place.environment}")
    echo('or: eval "$(handoff up --print-environment)"')
