"""A faulty server whose faults are planned by the number of the request, and what it stands before.

The servers are processes of their own: this one forks.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faulty_server import Fault, FaultyServer

_START_LIMIT_S = 90.0


class NumberedFaults(FaultyServer):
    """Does `fault` to `times` requests from the `at`-th on, counted since `begin`."""

    def __init__(self, upstream: str) -> None:
        """Do nothing to the traffic until `begin` is called."""
        super().__init__(upstream)
        self.passed = 0
        self._fault: Fault | None = None
        self._at = self._times = 0

    def begin(self, fault: Fault | None = None, at: int = 0, times: int = 1) -> None:
        """Count requests from 1 on, and plan a fault."""
        with self._lock:
            self.passed, self._fault, self._at, self._times = 0, fault, at, times

    def take(self, method: str, path: str) -> Fault | None:
        """Return the fault that was planned for this request, by its number."""
        with self._lock:
            self.passed += 1
            is_planned = self._at <= self.passed < self._at + self._times
        return self._fault if is_planned else None


@contextmanager
def s3_process() -> Iterator[dict[str, str]]:
    """Give the settings of an S3 endpoint of moto's, in a process, with the bucket `models`."""
    import boto3

    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with _server(command, settings["AWS_ENDPOINT_URL"]):
        boto3.session.Session().client(
            "s3", endpoint_url=settings["AWS_ENDPOINT_URL"], aws_access_key_id="test",
            aws_secret_access_key="test", region_name="us-east-1",
        ).create_bucket(Bucket="models")  # fmt: skip
        yield settings


@contextmanager
def mlflow_process(folder: Path) -> Iterator[str]:
    """Give the address of an MLflow server whose state is in `folder`."""
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
        "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}", "--workers", "1",
        "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip
    with _server(command, f"{address}/health"):
        yield address


@contextmanager
def _server(command: list[str], address: str) -> Iterator[None]:
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
    )  # fmt: skip
    try:
        _await(address)
        yield
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


def _await(address: str) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port
