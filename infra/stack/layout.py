"""Where the served stack keeps what it needs to run: `$HANDOFF_HOME/stack`, closed to others."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.files.locks import try_lock
from handoff.artifacts.files.writing import write_atomically

# The kernel's limit for a socket's path is 108 bytes with the end; supervisor adds its process id.
_SOCKET_LIMIT = 96
_SYSTEM_DATA = Path("/var/lib/handoff")


@dataclass(frozen=True)
class Choices:
    """What `handoff up` was asked for; None: what is the default, or runs already."""

    host: str | None = None
    prefect_port: int | None = None
    mlflow_port: int | None = None
    s3_port: int | None = None
    builds: int | None = None
    s3: bool | None = None
    sqlite: bool | None = None
    webhook: str | None = None
    webhook_port: int | None = None
    watch: tuple[str, ...] | None = None
    metrics: bool | None = None
    metrics_port: int | None = None


@dataclass(frozen=True)
class Stack:
    """What a running stack was started with. No secret is among it."""

    host: str
    prefect_port: int
    mlflow_port: int
    s3_port: int
    builds: int
    s3: bool
    sqlite: bool
    store: str
    # What the databases are, in words.
    database: str
    # The webhook's configuration and its port, and the places that are watched.
    webhook: str = ""
    webhook_port: int = 8787
    watch: tuple[str, ...] = ()
    # Whether figures are served to Prometheus, and the port.
    metrics: bool = False
    metrics_port: int = 9464

    @property
    def prefect_api(self) -> str:
        """The address of Prefect's API, as this machine reaches it."""
        return f"http://{reachable_host(self.host)}:{self.prefect_port}/api"

    @property
    def mlflow(self) -> str:
        """The address of MLflow, as this machine reaches it."""
        return f"http://{reachable_host(self.host)}:{self.mlflow_port}"

    @property
    def metrics_address(self) -> str:
        """The address of the figures for Prometheus, on loopback as the webhook."""
        return f"http://127.0.0.1:{self.metrics_port}"

    @property
    def s3_endpoint(self) -> str:
        """The address of the S3 endpoint for trying out, which nobody else can reach."""
        return f"http://127.0.0.1:{self.s3_port}"


def reachable_host(host: str) -> str:
    """Return the address under which this machine itself reaches a server on `host`."""
    if is_wildcard(host):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def is_wildcard(host: str) -> bool:
    """Return whether a server on `host` listens on every address of this machine."""
    return host in ("0.0.0.0", "::")  # noqa: S104 - compared, not listened on


def with_tuples(record: dict[str, Any]) -> dict[str, Any]:
    """Return what JSON has as lists as what it was written from."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}


class StackLayout:
    """The files of one home's stack."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / "stack"
        self.services = self.folder / "services"
        self.logs = self.folder / "logs"
        self.socket = self.folder / "supervisor.sock"
        self.process_file = self.folder / "supervisor.pid"
        self.configuration = self.folder / "supervisor.conf"
        self.environment = self.folder / "environment"
        self.prefect_home = self.folder / "prefect"
        self.mlflow_metrics = self.folder / "mlflow-metrics"
        self.setup = self.folder / "setup.json"
        self._stack = self.folder / "stack.json"

    @property
    def database(self) -> Path:
        """The folder of PostgreSQL's data, its socket beside them.

        PostgreSQL refuses to run as root, and another user can't reach into root's home: then the
        data lie in a folder of the system's, named by this home's digest.
        """
        if os.geteuid() == 0:
            return _SYSTEM_DATA / hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]
        return self.home / "postgres"

    def make(self) -> None:
        """Make the folders; raise `UsageProblem` where a socket's path would be too long."""
        for path in (self.socket, self.database / "socket" / ".s.PGSQL.5432"):
            if len(os.fsencode(path)) > _SOCKET_LIMIT:
                raise UsageProblem(
                    "The home folder's path is too long for a socket",
                    expected=f"at most {_SOCKET_LIMIT} bytes", got=str(path),
                    remedy="Set HANDOFF_HOME to a shorter one",
                )  # fmt: skip
        mlflow = self.home / "mlflow"
        for folder in (
            self.folder, self.services, self.logs, self.prefect_home, self.mlflow_metrics, mlflow
        ):  # fmt: skip
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the stack for one command; raise `EnvironmentLacking` while another one has it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as stream:
            if not try_lock(stream.fileno()):
                raise EnvironmentLacking(
                    "The stack is being started or stopped", expected="one command at a time",
                    got="another 'handoff up' or 'handoff down' at work",
                    remedy="Wait until it has ended",
                )  # fmt: skip
            yield

    def write_stack(self, stack: Stack) -> None:
        """Keep what the stack was started with."""
        write_atomically(self._stack, json.dumps(asdict(stack), indent=2))

    def read_stack(self) -> Stack | None:
        """Return what the stack was started with; None where none was, or it was stopped."""
        try:
            record: dict[str, Any] = json.loads(self._stack.read_text("utf-8"))
        except FileNotFoundError:
            return None
        known = {entry.name for entry in fields(Stack)}
        return Stack(**with_tuples({k: v for k, v in record.items() if k in known}))

    def remove_runtime_files(self) -> None:
        """Remove what was only for running: records, sockets, the environment.

        Data stay, and so does what the stack was set up with.
        """
        for file in (
            self._stack, self.environment, self.socket, self.process_file, self.configuration,
            *self.services.glob("*.json"),
        ):  # fmt: skip
            file.unlink(missing_ok=True)
