"""A real Prefect server for tests, on a free loopback port, with a home of its own."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from tests.limits import LIMIT_S
from tests.prefect_forks import TERMINATE
from tests.shared_tools import first_process, made_once

_START_LIMIT_S = 120.0


def free_port() -> int:
    """Return a loopback port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def prefect_server(
    home: Path, port: int = 0, settings: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start a server with its database in `home`; yield its API address; stop it.

    It listens on `port`, or on a free one; `settings` are Prefect's own variables.
    """
    copy_prefect_database(home)
    with _serve(home, port, settings) as address:
        yield address


@cache
def common_server() -> str:
    """Return the API address of a server for all tests of this process that only need some.

    Named by `PREFECT_API_URL`, it spares a `handoff release` its own, which takes seven seconds of
    a processor; this one takes one and a half. It ends with the process.
    """
    opened = ExitStack()
    atexit.register(opened.close)
    home = opened.enter_context(TemporaryDirectory(prefix="handoff-prefect-"))
    return opened.enter_context(prefect_server(Path(home)))


def copy_prefect_database(home: Path) -> None:
    """Let `home` be one in which Prefect's server was started before: its tables are there.

    Making them takes a server seconds: a release's own does it, once in a run of the tests.
    """
    # A home that can't be made is what one of the tests is about.
    with suppress(OSError):
        put_database(made_once("prefect", _start_once), home)


def put_database(files: Iterable[Path], home: Path) -> None:
    """Let a server that has `home` begin with the files of `database_of`, unless it has its own."""
    home.mkdir(parents=True, exist_ok=True)
    for file in files:
        if not (home / file.name).exists():
            shutil.copyfile(file, home / file.name)


def database_of(home: Path) -> list[Path]:
    """Return the files that a server has left in its home, for others to begin with."""
    with closing(sqlite3.connect(home / "prefect.db")) as database:
        # What it wrote last may still stand beside it.
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return [home / "prefect.db", home / "memo_store.toml"]


def _start_once(folder: Path) -> list[Path]:
    from handoff.infra.prefect.flow_calls import EmbeddedServer

    foreign = [name for name in os.environ if name.startswith("PREFECT_")]
    with patch.dict(os.environ):
        for name in foreign:
            del os.environ[name]
        os.environ["PREFECT_HOME"] = str(folder)
        server = EmbeddedServer(folder)
    try:
        server.wait()
    finally:
        server.end()
    return database_of(folder)


@contextmanager
def _serve(home: Path, port: int = 0, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    port = port or free_port()
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")},
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "true",
        **(settings or {}),
    }
    home.mkdir(parents=True, exist_ok=True)
    log = home / "server.log"
    # How often services look is read when Prefect is imported.
    start = _fork_server if settings is None else _start_server
    server = start(port, environment, log)
    address = f"http://127.0.0.1:{port}/api"
    try:
        _wait_until_healthy(server, address, log)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=LIMIT_S)


def _start_server(port: int, environment: Mapping[str, str], log: Path) -> _Server:
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    with log.open("wb") as stream:
        return subprocess.Popen(
            [*command, "--port", str(port)], env=environment, stdout=stream, stderr=stream
        )


def _fork_server(port: int, environment: Mapping[str, str], log: Path) -> _Server:
    request = {
        "port": port,
        "environment": dict(environment),
        "log": str(log),
        "folder": str(Path.cwd()),
    }
    return ForkedServer(made_once("prefect-forks", _start_forks), request)


class ForkedServer:
    """A Prefect server, asked for from the run's process that forks them; used as a `Popen`."""

    def __init__(self, address: Path, request: Mapping[str, object]) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(str(address))
        self._connection.send(json.dumps(request).encode())
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.001)
        return self._status

    def terminate(self) -> None:
        """Let it end in order, unless it has ended."""
        if self._status is None:
            # It may end at this moment.
            with suppress(OSError):
                self._connection.send(TERMINATE)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once it has ended."""
        if self._status is None:
            self._connection.settimeout(timeout)
            try:
                status = self._connection.recv(64)
            except TimeoutError:
                raise subprocess.TimeoutExpired("prefect server start", timeout or 0) from None
            except ConnectionError:
                status = b""
            # Nothing is said where the fork server itself is gone, and its servers with it.
            self._status = int(status or -signal.SIGKILL)
            self._connection.close()
        return self._status


_Server = ForkedServer | subprocess.Popen[bytes]


def _start_forks(folder: Path) -> Path:
    """Start the process that forks servers; it ends with the run, which nobody waits for."""
    address, log = folder / "socket", folder / "log"
    own = ("PREFECT_", "HANDOFF_", "MLFLOW_", "AWS_")
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(own)},
        "PREFECT_HOME": str(folder / "home"),
    }
    with log.open("wb") as stream:
        forks = subprocess.Popen(
            [sys.executable, "-m", "tests.prefect_forks", address, str(first_process())],
            cwd=Path(__file__).parents[1], env=environment, stdin=subprocess.DEVNULL,
            stdout=stream, stderr=stream, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + _START_LIMIT_S
    while not address.exists():
        if forks.poll() is not None or time.monotonic() > deadline:
            forks.kill()
            raise RuntimeError(f"nothing forks Prefect servers: {log.read_text()[-2000:]}")
        time.sleep(0.05)
    # It outlives this process; without a code Popen would warn of that.
    forks.returncode = 0
    return address


@contextmanager
def client_of(api: str) -> Iterator[Any]:
    """Give a client of the server; this process's settings name it, too."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as opened:
        yield opened


@contextmanager
def prefect_client(home: Path) -> Iterator[Any]:
    """Start a server with its database in `home`; give a client, this process being its own."""
    from prefect.client.orchestration import get_client
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_LOGGING_TO_API_ENABLED,
        temporary_settings,
    )

    with (
        prefect_server(home) as address,
        # What is logged last would find the server gone.
        temporary_settings({PREFECT_API_URL: address, PREFECT_LOGGING_TO_API_ENABLED: False}),
        get_client(sync_client=True) as client,
    ):
        yield client


def _wait_until_healthy(server: _Server, address: str, log: Path) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the Prefect server ended: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"no Prefect server within {_START_LIMIT_S} s: {log.read_text()[-2000:]}")
