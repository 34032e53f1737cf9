"""A real MLflow server for tests, on a free loopback port."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.limits import LIMIT_S
from tests.prefect_server import free_port
from tests.shared_tools import made_once

_START_LIMIT_S = 180.0


def copy_mlflow_tables(database: Path) -> None:
    """Let MLflow have made its tables in `database` already, unless it is there.

    They take it seconds. `test_the_walk_ends_with_the_versions_that_it_says` and
    `tests/studies/outages/test_kills.py` begin without.
    """
    # A home that can't be made is what one of the tests is about.
    with suppress(OSError):
        if not database.exists():
            database.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(made_once("mlflow", _make_tables), database)


def _make_tables(folder: Path) -> Path:
    from handoff.artifacts.mlflow.session import Session

    database = folder / "mlflow.db"
    assert Session(f"sqlite:///{database}", 60.0).client
    return database


@contextmanager
def mlflow_server(
    home: Path, artifacts: str, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start a server that keeps its database in `home` and what clients send at `artifacts`."""
    home.mkdir(parents=True, exist_ok=True)
    copy_mlflow_tables(home / "server.db")
    options = ["--workers", "1", "--backend-store-uri", f"sqlite:///{home / 'server.db'}",
               "--artifacts-destination", artifacts]  # fmt: skip
    with mlflow_process(home, "server", options, environment or {}, "/health") as address:
        yield address


@contextmanager
def mlflow_process(
    home: Path, command: str, options: Sequence[str], environment: Mapping[str, str], ready: str
) -> Iterator[str]:
    """Start an `mlflow` command that listens; yield its address when `ready` answers; stop it."""
    port = free_port()
    line = [sys.executable, "-m", "mlflow", *command.split(), "--host", "127.0.0.1"]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    # MLflow starts uvicorn by its name alone.
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    log = home / "mlflow.log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [*line, "--port", str(port), *options], stdout=stream, stderr=stream,
            env={**os.environ, "PATH": places, **quiet, **environment},
        )  # fmt: skip
    try:
        _wait(server, f"http://127.0.0.1:{port}{ready}", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=LIMIT_S)


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"MLflow ended: {log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"no MLflow within {_START_LIMIT_S} s: {log.read_text()[-2000:]}")
