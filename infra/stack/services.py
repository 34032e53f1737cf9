"""What is started: one record a service, kept in a file that only this user can read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from handoff.artifacts.files.whole_file import write_whole
from handoff.infra.engine.environments import Keeps


@dataclass(frozen=True)
class Service:
    """A process that supervisor keeps running.

    `environment` holds what it is given, passwords too: never a command line, which everybody on
    the machine can read. `keeps` says what it sees of the environment of `handoff up` besides.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    keeps: Keeps = "little"
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
    write_whole(file, json.dumps(asdict(service)))
    return file


def read_service(file: Path) -> Service:
    """Return the record that `write_service` wrote."""
    record = json.loads(file.read_text("utf-8"))
    return Service(**{**record, "command": tuple(record["command"])})
