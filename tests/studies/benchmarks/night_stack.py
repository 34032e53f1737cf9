"""The servers and workers of a simulated night, and what each of them takes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg2

from handoff.infra.engine.environments import QUIET
from tests.postgres_server import Postgres, postgres_server
from tests.prefect_server import free_port
from tests.studies.benchmarks.night_flow import FASTER, SHARED
from tests.studies.benchmarks.processes import cpu_seconds, proportional_bytes

_START_LIMIT_S = 180.0
_SAMPLE_S = 4.0
_REQUEST = re.compile(r'"(GET|POST|PATCH|DELETE|PUT) (/api[^ ?"]*)')
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|model-[0-9]+|bench-[^/]+")


@dataclass
class Stack:
    """A Prefect server on PostgreSQL, its address, and the processes by what they are."""

    api: str
    home: Path
    postgres: Postgres
    environment: dict[str, str]
    groups: dict[str, list[int]] = field(default_factory=dict)

    def start(self, group: str, *command: str, **extra: str) -> subprocess.Popen[bytes]:
        """Start a Python module as one of a group; its output goes to the group's log."""
        with (self.home / f"{group}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command], env={**self.environment, **extra},
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.groups.setdefault(group, []).append(process.pid)
        return process

    def requests(self) -> Counter[str]:
        """Return how often each address was asked for since the server began."""
        log = (self.home / "server.log").read_text(errors="replace")
        return Counter(f"{verb} {_ID.sub('*', path)}" for verb, path in _REQUEST.findall(log))

    def ask(self, query: str) -> str:
        """Return the first value that PostgreSQL answers."""
        environment = self.postgres.environment
        connection = psycopg2.connect(
            host=environment["PGHOST"], port=environment["PGPORT"], user=environment["PGUSER"],
            password=environment["PGPASSWORD"], dbname="postgres",
        )  # fmt: skip
        with connection, connection.cursor() as cursor:
            cursor.execute(query)
            (value,) = cursor.fetchone() or ("",)
        connection.close()
        return str(value)


@contextmanager
def open_stack(home: Path, faster: float, **extra: str) -> Iterator[Stack]:
    """Start PostgreSQL and Prefect's server, whose settings `extra` adds to; stop both."""
    with ExitStack() as opened:
        postgres = opened.enter_context(postgres_server("bench", durable=True))
        port = free_port()
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "HANDOFF_"))},
            **QUIET,
            "HANDOFF_HOME": str(home),
            "PREFECT_HOME": str(home / "prefect"),
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PYTHONPATH": str(Path(__file__).parents[3]),
            FASTER: str(faster),
        }
        stack = Stack(environment["PREFECT_API_URL"], home, postgres, environment)
        server = stack.start(
            "server", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port),
            PREFECT_SERVER_DATABASE_CONNECTION_URL="postgresql+asyncpg://postgres:bench@127.0.0.1:"
            f"{postgres.port}/postgres",
            PREFECT_SERVER_LOGGING_LEVEL="INFO",  # which logs each request
            PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE="prefect.server.concurrency.lease_storage."
            "filesystem",
            **extra,
        )  # fmt: skip
        opened.callback(_end, [server])
        stack.groups["postgres"] = [
            one.pid for one in psutil.process_iter(["cmdline"])
            if str(postgres.port) in (one.info["cmdline"] or [])
            and one.info["cmdline"][0].endswith("/postgres")
        ][:1]  # fmt: skip
        _wait_until_healthy(stack.api)
        yield stack


def _wait_until_healthy(api: str) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        with suppress(OSError), urllib.request.urlopen(f"{api}/health", timeout=5):
            return
        time.sleep(0.5)
    raise TimeoutError(f"no Prefect server at {api} within {_START_LIMIT_S:.0f} s")


@contextmanager
def open_workers(
    stack: Stack, count: int, slots: int, *, threads: bool, processes: int = 2
) -> Iterator[None]:
    """Start the worker of the parent's pool and `count` of the models', of `slots` each; end them.

    As `threads`, these share up to `processes` processes.
    """
    control = ("handoff", "worker", "--pool", "handoff-control", "--name", "control")
    started = [stack.start("control", *control, "--limit", "2")]
    for number in range(count if not threads else min(processes, count)):
        if threads:
            share = count // min(processes, count) + (number < count % min(processes, count))
            command = (
                "tests.studies.benchmarks.night_workers", "handoff-build", str(share), str(slots)
            )  # fmt: skip
            environment = {SHARED: "1", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
                           "PREFECT_WORKER_QUERY_SECONDS": "5"}  # fmt: skip
            started.append(stack.start("workers", *command, **environment))
        else:
            pool = (
                "handoff",
                "worker",
                "--pool",
                "handoff-build",
                "--limit",
                str(slots),
            )
            started.append(stack.start("workers", *pool, "--name", f"bench-{number}"))
    try:
        yield
    finally:
        _end(started)
        stack.groups.pop("workers"), stack.groups.pop("control")


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the processes with all that they started, gently at first."""
    for sign, limit_s in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 10.0)):
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
        _, left = psutil.wait_procs([psutil.Process(p.pid) for p in processes if not p.poll()
                                     and psutil.pid_exists(p.pid)], timeout=limit_s)  # fmt: skip
        if not left:
            break
    for process in processes:
        process.wait(10)


@dataclass
class Meter:
    """Watches a stack: CPU seconds and peak memory by group, and how long a question takes."""

    stack: Stack
    peaks: dict[str, int] = field(default_factory=dict)
    connections: int = 0
    loads: list[float] = field(default_factory=list)
    asked_s: list[float] = field(default_factory=list)

    def cpu_seconds(self) -> dict[str, float]:
        """Return what each group has used so far, with those of its processes that have ended."""
        return {
            group: sum(cpu_seconds(one) for pid in pids for one in _tree(pid))
            for group, pids in self.stack.groups.items()
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch while the body runs."""
        over = threading.Event()
        threads = [threading.Thread(target=loop, args=(over,), daemon=True)
                   for loop in (self._sample, self._ask)]  # fmt: skip
        for thread in threads:
            thread.start()
        yield
        over.set()
        for thread in threads:
            thread.join()

    def _sample(self, over: threading.Event) -> None:
        while not over.wait(_SAMPLE_S):
            for group, pids in self.stack.groups.items():
                size = sum(proportional_bytes(one.pid) for pid in pids for one in _tree(pid))
                self.peaks[group] = max(size, self.peaks.get(group, 0))
            self.loads.append(psutil.getloadavg()[0])
            with suppress(psycopg2.Error):
                count = self.stack.ask("select count(*) from pg_stat_activity where datname is "
                                       "not null")  # fmt: skip
                self.connections = max(self.connections, int(count))

    def _ask(self, over: threading.Event) -> None:
        """Ask the server a small question, as a command of a person would."""
        while not over.wait(1.0):
            began = time.monotonic()
            with (
                suppress(OSError),
                urllib.request.urlopen(f"{self.stack.api}/work_pools/handoff-build", timeout=60),
            ):
                pass
            self.asked_s.append(time.monotonic() - began)


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
