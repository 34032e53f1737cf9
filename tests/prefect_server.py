"""A real Prefect server for tests, on a free loopback port, with a home of its own."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.shared_tools import made_once

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
    started_before(home)
    with _served(home, port, settings) as address:
        yield address


def started_before(home: Path) -> None:
    """Let `home` be one in which Prefect's server was started before: its tables are there.

    Making them takes a server four of its ten seconds. `test_embedded_server.py` starts it without.
    """
    # A home that can't be made is what one of the tests is about.
    with suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
        for name in made_once("prefect", _start_once):
            if not (home / name.name).exists():
                shutil.copyfile(name, home / name.name)


def _start_once(folder: Path) -> list[Path]:
    with _served(folder):
        pass
    with closing(sqlite3.connect(folder / "prefect.db")) as database:
        # What it wrote last may still stand beside it.
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return [folder / "prefect.db", folder / "memo_store.toml"]


@contextmanager
def _served(home: Path, port: int = 0, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    port = port or free_port()
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")},
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "true",
        **(settings or {}),
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    home.mkdir(parents=True, exist_ok=True)
    with (home / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--port", str(port)], env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    address = f"http://127.0.0.1:{port}/api"
    try:
        _wait_until_healthy(server, address, home / "server.log")
        yield address
    finally:
        server.terminate()
        server.wait(timeout=30)


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


def _wait_until_healthy(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
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
