"""The services of compose.yaml as processes of this machine: its commands, its environment."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.infra.stack.stack_files import STACK, TOOLS, filled_in, services
from tests.limits import LIMIT_S

_START_LIMIT_S = 180.0
VALUES = {
    "POSTGRES_PASSWORD": "administrator", "PREFECT_DATABASE_PASSWORD": "prefect-database",
    "MLFLOW_DATABASE_PASSWORD": "mlflow-database", "S3_USER": "test", "S3_PASSWORD": "test",
    "S3_BUCKET": "stack", "PREFECT_PASSWORD": "prefect-login", "MLFLOW_PASSWORD": "workers-login",
    "MLFLOW_ADMIN_PASSWORD": "administrators-login", "MLFLOW_SECRET_KEY": "0123456789abcdef",
}  # fmt: skip


def environment_of(service: str, here: Mapping[str, str]) -> dict[str, str]:
    """Return what compose gives the service, with what is elsewhere here; nothing of this shell."""
    settings = {
        name: filled_in(str(value), VALUES)
        for name, value in services()[service]["environment"].items()
    }
    unknown = set(here) - set(settings) - {"PGPORT", "PREFECT_API_URL"}
    assert not unknown, f"compose says nothing of {unknown}"
    base = {"PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}", "HOME": str(Path.home())}
    return {**base, **settings, **here}


def command_of(service: str, changed: Mapping[str, str]) -> list[str]:
    """Return the service's command, with some words changed: each has to be there."""
    words = [filled_in(word, VALUES) for word in services()[service]["command"]]
    assert not set(changed) - set(words)
    return [changed.get(word, word) for word in words]


def run_prepare(
    service: str, here: Mapping[str, str], words: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    script = {"/opt/stack/prepare.py": str(STACK / "prepare.py")}
    return subprocess.run(
        command_of(service, {**script, **(words or {})}), env=environment_of(service, here),
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip


def status_of(address: str, login: str = "", body: object = None) -> tuple[int, bytes]:
    """Return the status and the answer of a request; 0 where nothing listens."""
    headers = {"Content-Type": "application/json"}
    if login:
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


@contextmanager
def running(
    command: list[str], environment: Mapping[str, str], ready: str, log: Path
) -> Iterator[None]:
    with log.open("wb") as stream:
        server = subprocess.Popen(
            command, env=environment, stdout=stream, stderr=stream, cwd=log.parent,
            start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _START_LIMIT_S
        while status_of(ready)[0] != 200:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"it didn't start: {log.read_text()[-3000:]}")
            time.sleep(0.3)
        yield
    finally:
        server.terminate()
        server.wait(timeout=LIMIT_S)
