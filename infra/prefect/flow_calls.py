"""Flows that a command runs in its own process, beside a server of Prefect's.

Prefect would start its own at the first request, after it has imported the whole server itself,
too: that took twelve of the fifteen seconds before a release's first step (two cores, Prefect 3.8).
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from handoff.artifacts.errors import EnvironmentLacking, HandoffError, first_line
from handoff.artifacts.isolation import isolated_command
from handoff.artifacts.waiting import poll_for
from handoff.infra.engine.budget import disk_full_error, is_disk_full, is_out_of_space
from handoff.infra.engine.environments import (
    child_environment,
    prefect_variables,
    prepare_prefect,
)
from handoff.infra.engine.import_paths import empty_folder
from handoff.infra.prefect.orphans import end_orphans_later, mark_variables
from handoff.infra.prefect.tracing import trace_runs
from handoff.infra.servers import get_status, last_error_line
from handoff.infra.settings import Settings, read_host_settings
from handoff.infra.terminal.interruption import interruptible

# A first start migrates a fresh database, which took 12 to 17 s on two busy cores.
_START_LIMIT_S = 120.0
_PAUSE_S = 0.05
_STOP_LIMIT_S = 5.0
_servers: list[EmbeddedServer] = []


def begin_server(folder: Path) -> EmbeddedServer | None:
    """Start the server that this process's flows are recorded by, once, and import Prefect.

    It stands in `folder`, where nothing lies: it would read settings and import modules from there.
    None where Prefect was imported before: it has read its settings then, and starts its own.
    """
    if not _servers:
        if "prefect" in sys.modules:
            return None
        server = EmbeddedServer(folder)
        _servers.append(server)
        atexit.register(server.end)
        # Prefect reads it when it is imported; for others there is no server that one may name.
        os.environ["PREFECT_API_URL"] = server.api
        try:
            import prefect  # noqa: F401
        finally:
            del os.environ["PREFECT_API_URL"]
    return _servers[0]


class EmbeddedServer:
    """A Prefect server in a process of its own, on this machine alone, with the home's database."""

    def __init__(self, folder: Path) -> None:
        """Start it in `folder`; it answers after seconds."""
        self._output: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.api = f"http://127.0.0.1:{listening.getsockname()[1]}/api"
            # The options are those that Prefect starts its own with. The socket is handed over, so
            # that no other process can take the port in between.
            self._process = subprocess.Popen(
                isolated_command(
                    "uvicorn", "--factory",
                    "prefect.server.api.server:create_app", "--fd", str(listening.fileno()),
                    "--log-level", "error", "--lifespan", "on",
                ),
                cwd=folder, env=_server_environment(), pass_fds=(listening.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._output, stderr=self._output,
                # Ctrl-C is the command's, which ends it when it has reported.
                start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Wait until it answers; raise `EnvironmentLacking` where it ends, or never does."""
        for _ in poll_for(_START_LIMIT_S, _PAUSE_S):
            if get_status(f"{self.api}/health") == 200:
                return
            if self._process.poll() is not None:
                break
        raise self._start_error()

    def end(self) -> None:
        """End it; after seconds without asking."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start_error(self) -> EnvironmentLacking:
        # The file has no name.
        last_line = last_error_line(Path(f"/proc/self/fd/{self._output.fileno()}"))
        status = self._process.poll()
        got = "no answer" if status is None else f"it ended with {status}"
        return EnvironmentLacking(
            "Prefect's embedded server did not start",
            expected=f"an answer within {_START_LIMIT_S:.0f} s",
            got=f"{got}: {last_line}" if last_line else got,
            remedy="Is there room, and may this user write to the home folder? A server of your "
            "own can be named by PREFECT_API_URL",
        )


def _server_environment() -> dict[str, str]:
    """Return what the server sees: Prefect's settings, and none of the stores' or of others."""
    server_settings = {
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
    }
    return {**child_environment(), **prefect_variables(), **mark_variables(), **server_settings}


T = TypeVar("T")


def call_flow(settings: Settings, workspace: Path | None, load: Callable[[], Callable[[], T]]) -> T:
    """Return what the function returns that `load` returns, which calls a flow.

    Flows are to be imported in `load`: Prefect reads its settings when it is imported, and its
    embedded server starts meanwhile. `workspace` is the folder of a build that is open already.
    Raises `HandoffError` alone.
    """
    prepare_prefect(settings)
    server = None
    if settings.is_embedded:
        end_orphans_later()
        server = begin_server(empty_folder(settings.home))
    from handoff.flows import host

    host.provide(lambda: read_host_settings(settings, workspace))
    try:
        with trace_runs(), interruptible():
            flow = load()
            if server is not None:
                server.wait()
            return flow()
    except HandoffError:
        raise
    except Exception as error:
        # An embedded server that can't write answers that it is broken.
        if is_disk_full(error) or (settings.is_embedded and is_out_of_space(settings.home)):
            raise disk_full_error("the flow", settings.home) from error
        # What is left is Prefect's own: a server that can't be reached, or doesn't let us in.
        raise EnvironmentLacking(
            "Prefect could not run the flow",
            expected=settings.prefect_api or "an embedded server that starts",
            got=first_line(error),
            remedy="Look at PREFECT_API_URL and whether that server is up, or unset it to run "
            "embedded; --debug shows the trace",
        ) from error
