"""Supervisor (supervisord.org) runs the services: it restarts them, and keeps and rotates logs."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import xmlrpc.client
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.files.writing import write_atomically
from handoff.artifacts.isolation import isolated_command
from handoff.artifacts.waiting import poll_for
from handoff.infra.engine.environments import KeptVariables
from handoff.infra.stack.layout import StackLayout


@dataclass(frozen=True)
class Service:
    """A process that supervisor keeps running.

    `environment` holds what it is given, passwords too: never a command line, which everybody on
    the machine can read. `keeps` says what it sees of the environment of `handoff up` besides.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    keeps: KeptVariables = "little"
    # The system's user that it runs as, where this isn't the one who started it.
    user: str = ""
    # Services of a lower stage are started first, and stopped last.
    stage: int = 20
    # Whether the next stage needs it; what nobody waits for comes up beside that one.
    is_awaited: bool = True
    stop_signal: str = "TERM"
    stops_group: bool = True
    stop_limit_s: int = 20
    # What a killed one leaves behind (MLflow's uvicorn holds its port) is ended before it starts
    # again. A worker's flow runs end with their worker by themselves (`infra.prefect.flow_run`).
    ends_leftovers: bool = True
    # The address that people open, or programs name.
    address: str = ""
    # For a worker: the pool that it polls, and the name by which Prefect knows it.
    pool: str = ""
    worker: str = ""


def write_service(folder: Path, service: Service) -> Path:
    """Write the record where `infra.stack.start` reads it; return the file."""
    file = folder / f"{service.name}.json"
    write_atomically(file, json.dumps(asdict(service)))
    return file


def read_service(file: Path) -> Service:
    """Return the record that `write_service` wrote."""
    record = json.loads(file.read_text("utf-8"))
    return Service(**{**record, "command": tuple(record["command"])})


_LOG_BYTES, _LOG_BACKUPS = "10MB", 5
# Each try waits a second longer than the one before: this is some days.
_RETRIES = 700
_START_LIMIT_S, _STOP_LIMIT_S = 20.0, 120.0
_PAUSE_S = 0.1


@dataclass(frozen=True)
class State:
    """How supervisor sees a service: `RUNNING`, `BACKOFF` (it ended, and is tried again), ...."""

    name: str
    process: int
    status: str
    # When it was started last, in seconds since 1970; 0 for never.
    started: float
    now: float
    reason: str

    @property
    def is_up(self) -> bool:
        """Whether there is a process."""
        return self.status in ("RUNNING", "STARTING")


class _LocalTransport(xmlrpc.client.Transport):
    """XML-RPC over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> Any:  # noqa: ANN401 - http.client's types
        from supervisor.xmlrpc import UnixStreamHTTPConnection

        connection = UnixStreamHTTPConnection("localhost", timeout=30)
        connection.socketfile = self._path
        return connection


class Supervision:
    """The supervisor of one home's stack."""

    def __init__(self, layout: StackLayout) -> None:
        self._layout = layout

    def is_running(self) -> bool:
        """Return whether it answers."""
        try:
            return bool(self._ask("getState"))
        except (OSError, xmlrpc.client.Error):
            return False

    def launch(self, services: Sequence[Service], environment: Mapping[str, str]) -> None:
        """Start the supervisor with these services, none of which runs yet."""
        layout = self._layout
        for stale in layout.services.glob("*.json"):
            stale.unlink()
        write_atomically(layout.configuration, _configuration(layout, services))
        # The socket of one that was killed would be taken for a living one's.
        layout.socket.unlink(missing_ok=True)
        answer = subprocess.run(
            isolated_command("supervisor.supervisord", "-c", str(layout.configuration)),
            env=environment, cwd=layout.folder, capture_output=True, text=True, check=False,
            timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in poll_for(_START_LIMIT_S, _PAUSE_S):
            if answer.returncode:
                break
            if self.is_running():
                return
        got = (answer.stderr or answer.stdout).strip()[-300:] or "no answer"
        raise EnvironmentLacking(
            "The supervisor doesn't start", expected="supervisord to answer on its socket", got=got,
            remedy=f"Look into {layout.logs / 'supervisor.log'}",
        )  # fmt: skip

    def states(self) -> list[State]:
        """Return how each service is."""
        return [
            State(
                entry["name"], entry["pid"], entry["statename"], float(entry["start"]),
                float(entry["now"]), entry["spawnerr"] or entry["description"],
            )
            for entry in self._ask("getAllProcessInfo")
        ]  # fmt: skip

    def state(self, name: str) -> State:
        """Return how one service is."""
        return next(state for state in self.states() if state.name == name)

    def start(self, name: str) -> bool:
        """Start a service that has no process now; return whether that was to do."""
        if self.state(name).is_up:
            return False
        # One that waits to be tried again is tried at once; for others there is nothing to stop.
        with contextlib.suppress(xmlrpc.client.Fault):
            self._ask("stopProcess", name)
        try:
            self._ask("startProcess", name, False)
        except xmlrpc.client.Fault as fault:
            if "ALREADY_STARTED" not in fault.faultString:
                raise
        return True

    def stop(self, name: str) -> None:
        """Stop a service, and wait until it has ended."""
        with contextlib.suppress(xmlrpc.client.Fault):  # it doesn't run
            self._ask("stopProcess", name)

    def shut_down(self) -> None:
        """Stop all services, the last stage first, and the supervisor."""
        process = int(self._ask("getPID"))
        self._ask("shutdown")
        for _ in poll_for(_STOP_LIMIT_S, _PAUSE_S):
            if not self._answers() and not _is_alive(process):
                return

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._layout.socket)) == 0

    def _ask(self, call: str, *arguments: object) -> Any:  # noqa: ANN401 - XML-RPC's answers
        transport = _LocalTransport(str(self._layout.socket))
        with xmlrpc.client.ServerProxy("http://localhost", transport=transport) as server:
            return getattr(server.supervisor, call)(*arguments)


def _is_alive(process: int) -> bool:
    try:
        return bool(Path(f"/proc/{process}/environ").read_bytes())  # a zombie's is empty
    except OSError:
        return False


def _configuration(layout: StackLayout, services: Sequence[Service]) -> str:
    """Return supervisor's configuration. It holds no secret: these are in the services' files."""
    umask = os.umask(0)
    os.umask(umask)
    lines = [
        "[unix_http_server]", f"file={_escape(layout.socket)}", "chmod=0700", "",
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface", "",
        "[supervisord]", f"pidfile={_escape(layout.process_file)}", "silent=true",
        f"directory={_escape(layout.folder)}", f"umask={umask:03o}",
        f"logfile={_escape(layout.logs / 'supervisor.log')}", f"logfile_maxbytes={_LOG_BYTES}",
        f"logfile_backups={_LOG_BACKUPS}", *(["user=root"] if os.geteuid() == 0 else []), "",
    ]  # fmt: skip
    for service in services:
        file = write_service(layout.services, service)
        command = isolated_command("handoff.infra.stack.start", str(file))
        lines += [
            f"[program:{service.name}]", f"command={_escape(shlex.join(command))}",
            # 'handoff up' starts each when what it needs is healthy.
            "autostart=false", "autorestart=true", "startsecs=5", f"startretries={_RETRIES}",
            f"priority={service.stage}", f"stopsignal={service.stop_signal}",
            f"stopwaitsecs={service.stop_limit_s}",
            f"stopasgroup={str(service.stops_group).lower()}", "killasgroup=true",
            "redirect_stderr=true",
            f"stdout_logfile={_escape(layout.logs / f'{service.name}.log')}",
            f"stdout_logfile_maxbytes={_LOG_BYTES}", f"stdout_logfile_backups={_LOG_BACKUPS}", "",
        ]  # fmt: skip
    return "\n".join(lines)


def _escape(value: object) -> str:
    """Return a value as supervisor reads it, which expands what follows a percent sign."""
    return str(value).replace("%", "%%")
