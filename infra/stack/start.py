"""Replace this process by a service: `infra.stack.start FILE`, isolated; supervisor calls it.

It gives the service its environment, its user and the signals that it expects: a server that was
started from a shell with `&` would ignore SIGINT, and a worker its first SIGTERM with it.
"""

from __future__ import annotations

import os
import pwd
import signal
import sys
from pathlib import Path
from typing import NoReturn

from handoff.infra.engine.environments import SERVICE_MARK, STACK_MARK, service_environment
from handoff.infra.prefect.orphans import end_processes, find_marked
from handoff.infra.stack.supervision import Service, read_service


def start(service: Service) -> NoReturn:
    """Replace this process by the service."""
    environment = {
        **service_environment(service.keeps), **service.environment, SERVICE_MARK: service.name,
    }  # fmt: skip
    if service.ends_leftovers:
        end_processes(lambda: [
            process for process, its in find_marked(STACK_MARK, environment[STACK_MARK]).items()
            if its.get(SERVICE_MARK) == service.name
        ])  # fmt: skip
    reset_signals()
    if service.user:
        _switch_user(service.user)
    os.execvpe(service.command[0], service.command, environment)  # noqa: S606 - argv of our own


def reset_signals() -> None:
    """Undo what a shell (SIGINT) or Python (SIGPIPE) has this process ignore."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def _switch_user(user: str) -> None:
    os.chdir("/")  # this user's folders may be closed to that one
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


if __name__ == "__main__":
    start(read_service(Path(sys.argv[1])))
