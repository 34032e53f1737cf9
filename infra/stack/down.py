"""`handoff down`: let finish what builds, stop exactly what `handoff up` started, keep the data.

The pool is paused meanwhile, so that nothing more is taken. Light flows of the control pool aren't
waited for: they mostly wait for others themselves.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from handoff.artifacts.errors import EnvironmentLacking
from handoff.flows.names import BUILD_POOL
from handoff.infra.engine.environments import SERVICE_MARK, STACK_MARK, prepare_prefect
from handoff.infra.prefect.orphans import end_processes, find_marked
from handoff.infra.prefect.pools import paused_pool
from handoff.infra.settings import read_settings
from handoff.infra.stack import postgres
from handoff.infra.stack.layout import StackLayout
from handoff.infra.stack.supervision import Supervision, read_service
from handoff.infra.terminal.console import print_json
from handoff.infra.terminal.output import echo

# Prefect's name for it, in the environment of the run's processes.
_RUN = "PREFECT__FLOW_RUN_ID"
_BUILD = "build"
_PAUSE_S = 0.5
_REPORTS_EVERY_S = 60.0


@contextmanager
def drain(
    layout: StackLayout, supervision: Supervision, timeout_s: float | None
) -> Iterator[list[str]]:
    """Wait until what builds has ended, `timeout_s` seconds at most; give what hadn't by then.

    In the body the worker for builds is stopped, and its pool takes up again what comes: whoever
    starts the stack next finds it as it was.
    """
    service = layout.services / f"{_BUILD}.json"
    stack = layout.read_stack()
    if stack is None or not service.exists() or not running_builds(layout):
        yield []
        return
    login = read_service(service).environment.get("PREFECT_API_AUTH_STRING", "")
    with paused_pool(stack.prefect_api, login, BUILD_POOL):
        left = _wait(layout, timeout_s)
        supervision.stop(_BUILD)
    yield left


def _wait(layout: StackLayout, timeout_s: float | None) -> list[str]:
    began = last_report = time.monotonic()
    first = _format_runs(running_builds(layout))
    echo(f"Waiting for {first}. Ctrl-C leaves the stack up; --now ends them", err=True)
    while running := running_builds(layout):
        now = time.monotonic()
        if timeout_s is not None and now - began >= timeout_s:
            return running
        if now - last_report >= _REPORTS_EVERY_S:
            last_report = now
            echo(f"Still waiting for {_format_runs(running)}, for {now - began:.0f} s", err=True)
        time.sleep(_PAUSE_S)
    return []


def running_builds(layout: StackLayout) -> list[str]:
    """Return the ids of the flow runs that build on this stack, sorted."""
    environments = find_marked(STACK_MARK, str(layout.home)).values()
    return sorted({
        environment[_RUN] for environment in environments
        if environment.get(SERVICE_MARK) == _BUILD and environment.get(_RUN)
    })  # fmt: skip


def _format_runs(running: list[str]) -> str:
    return f"{len(running)} flow run{'s' * (len(running) != 1)} ({', '.join(running)})"


_POSTGRES_LIMIT_S = 60.0


def bring_down(*, now: bool, timeout_s: float | None, as_json: bool) -> None:
    """Stop the stack, also one whose supervisor was killed, and print what was stopped.

    Unless it has to be `now`, what builds is let finish before, for `timeout_s` seconds at most;
    None for as long as it takes.
    """
    settings = read_settings()
    prepare_prefect(settings, retries=1)
    layout = StackLayout(settings.home)
    if not layout.folder.exists():
        _print_stopped([], layout, as_json=as_json)
        return
    with layout.locked():
        supervision = Supervision(layout)
        stopped: list[str] = []
        if supervision.is_running():
            stopped = [state.name for state in supervision.states() if state.process]
            without_waiting = nullcontext(running_builds(layout))
            waiting = without_waiting if now else drain(layout, supervision, timeout_s)
            with waiting as left:
                if left:
                    echo(f"Ended before they were done: {', '.join(left)}", err=True)
                supervision.shut_down()
        stopped += [name for name in end_leftovers(layout) if name not in stopped]
        layout.remove_runtime_files()
    _print_stopped(stopped, layout, as_json=as_json)


def end_leftovers(layout: StackLayout) -> list[str]:
    """End what an earlier supervisor of this home started and runs without it; return the names.

    All of it carries the home in its environment, which PostgreSQL alone may overwrite: that one
    is recognised by the folder in which it works, and asked last.
    """
    database = postgres.main_process(layout)
    marked_processes = _marked_processes(layout)
    names = {
        environment.get(SERVICE_MARK, "supervisor")
        for environment in marked_processes.values()
    }  # fmt: skip
    end_processes(lambda: _marked_processes(layout))
    if database:
        names.add("postgres")
        _stop_database(layout, database)
    if left := [*_marked_processes(layout), *filter(None, [postgres.main_process(layout)])]:
        raise EnvironmentLacking(
            "Some processes of the stack can't be ended", expected="none left",
            got=f"processes {', '.join(map(str, left))}", remedy="End them, and run it again",
        )  # fmt: skip
    return sorted(names)


def _marked_processes(layout: StackLayout) -> dict[int, dict[str, str]]:
    """Return the stack's processes but for the database's, which has a way of its own to end."""
    return {
        process: environment
        for process, environment in find_marked(STACK_MARK, str(layout.home)).items()
        if environment.get(SERVICE_MARK) != "postgres"
    }


def _stop_database(layout: StackLayout, process: int) -> None:
    """Ask for a fast shutdown, which writes everything; force it when that takes too long."""
    deadline = time.monotonic() + _POSTGRES_LIMIT_S
    os.kill(process, signal.SIGINT)
    while postgres.main_process(layout) == process:
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
            deadline += _POSTGRES_LIMIT_S
        time.sleep(0.1)


def _print_stopped(stopped: Sequence[str], layout: StackLayout, *, as_json: bool) -> None:
    if as_json:
        print_json({"stopped": list(stopped)})
    elif stopped:
        echo(f"Stopped {', '.join(stopped)}. The data stay in {layout.home}.")
    else:
        echo("Nothing runs that 'handoff up' started here.")
