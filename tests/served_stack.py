"""A served stack for tests, with a home and ports of its own; and a PostgreSQL beside it."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from handoff.infra.engine.environments import STACK_MARK
from handoff.infra.prefect.orphans import find_marked
from handoff.infra.stack import postgres
from handoff.infra.stack.layout import StackLayout
from tests.limits import LIMIT_S
from tests.prefect_server import free_port


@dataclass
class Home:
    """A home of Handoff with ports of its own, and the command line on it."""

    folder: Path
    prefect_port: int
    mlflow_port: int
    # What everything is run with: Prefect's login.
    settings: dict[str, str]
    python: Path = Path(sys.executable)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `handoff` with nothing set but what is given."""
        kept = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("HANDOFF_", "PREFECT_", "MLFLOW_", "AWS_"))
        }  # fmt: skip
        return subprocess.run(
            [self.python, "-m", "handoff", *arguments], capture_output=True, text=True,
            check=False, timeout=LIMIT_S,
            env={**kept, "HANDOFF_HOME": str(self.folder), **self.settings, **environment},
        )  # fmt: skip

    def up(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `handoff up` on this home's ports."""
        ports = ("--prefect-port", str(self.prefect_port), "--mlflow-port", str(self.mlflow_port))
        return self.run("up", *ports, *arguments, **environment)

    def processes(self) -> dict[str, int]:
        """Bring the stack up; return the process of each service."""
        answer = self.up("--json")
        assert answer.returncode == 0, answer.stderr
        services = json.loads(answer.stdout)["services"]
        assert {service["state"] for service in services} == {"healthy"}, services
        return {service["service"]: service["process"] for service in services}

    def left(self) -> list[str]:
        """Return the command lines of what runs for this home, in whatever way it is told."""
        found = set(find_marked(STACK_MARK, str(self.folder)))
        named = (str(self.folder), str(self.place.database), f"--port {self.prefect_port}")
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            if any(name in line for name in named):
                found.add(process.pid)
        return [" ".join(command_line(process)) for process in found]

    @property
    def place(self) -> StackLayout:
        return StackLayout(self.folder)


def command_line(process: int) -> list[str]:
    """Return a process's arguments; none for one that has ended."""
    try:
        return psutil.Process(process).cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


@contextmanager
def handoff_home(settings: dict[str, str], python: Path = Path(sys.executable)) -> Iterator[Home]:
    """Give a fresh home; bring its stack down and remove everything."""
    # pytest's folders have paths too long for sockets.
    folder = Path(tempfile.mkdtemp(prefix="handoff-", dir="/var/tmp"))
    home = Home(folder, free_port(), free_port(), settings, python)
    try:
        yield home
    finally:
        home.run("down", "--now")
        shutil.rmtree(folder)
        shutil.rmtree(home.place.database, ignore_errors=True)


def wait_until(what: str, is_so: Callable[[], bool], limit_s: float = 120.0) -> None:
    """Wait until something is so; fail with its name."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.2)


@contextmanager
def foreign_postgres(folder: Path) -> Iterator[tuple[psutil.Process, StackLayout]]:
    """Another cluster, which no 'handoff up' started."""
    place = StackLayout(folder)
    place.make()
    postgres.prepare_cluster(place, postgres.find_programs(""))
    service = postgres.postgres_service(place, postgres.find_programs(""))
    owner = pwd.getpwnam(service.user) if service.user else None
    process = subprocess.Popen(
        service.command, cwd="/", user=owner.pw_uid if owner else None,
        group=owner.pw_gid if owner else None, extra_groups=[] if owner else None,
    )  # fmt: skip
    try:
        wait_until("the other PostgreSQL", lambda: postgres.is_ready(place))
        yield psutil.Process(process.pid), place
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=LIMIT_S)
        shutil.rmtree(place.database)
