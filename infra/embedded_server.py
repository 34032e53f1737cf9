"""Prefect's server for a command without one: it starts while the command still imports.

Prefect would start it at the first request, after it has imported the whole server itself, too:
that took twelve of the fifteen seconds before a release's first step (two cores, Prefect 3.8).
"""

from __future__ import annotations

import atexit
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import BinaryIO

from artifacts.errors import EnvironmentLacking
from infra.environments import child_environment
from infra.orphans import marks

# A first start migrates a fresh database, which took 12 to 17 s on two busy cores.
_PATIENCE_S = 120.0
_PAUSE_S = 0.05
_END_S = 5.0
_ERROR = re.compile(r"[\w.]*(Error|Exception): ")
_started: list[EmbeddedServer] = []


def begin_server() -> EmbeddedServer | None:
    """Start the server that this process's flows are recorded by, once, and import Prefect.

    None where Prefect was imported before: it has read its settings then, and starts its own.
    """
    if not _started:
        if "prefect" in sys.modules:
            return None
        server = EmbeddedServer()
        _started.append(server)
        atexit.register(server.end)
        # Prefect reads it when it is imported; for others there is no server that one may name.
        os.environ["PREFECT_API_URL"] = server.api
        try:
            import prefect  # noqa: F401
        finally:
            del os.environ["PREFECT_API_URL"]
    return _started[0]


class EmbeddedServer:
    """A Prefect server in a process of its own, on this machine alone, with the home's database."""

    def __init__(self) -> None:
        """Start it; it answers after seconds."""
        self._told: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.api = f"http://127.0.0.1:{listening.getsockname()[1]}/api"
            # The options are those that Prefect starts its own with. The socket is handed over, so
            # that no other process can take the port in between.
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "uvicorn", "--factory",
                    "prefect.server.api.server:create_app", "--fd", str(listening.fileno()),
                    "--log-level", "error", "--lifespan", "on",
                ],
                env=_environment(), pass_fds=(listening.fileno(),), stdin=subprocess.DEVNULL,
                stdout=self._told, stderr=self._told,
                # Ctrl-C is the command's, which ends it when it has reported.
                start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Wait until it answers; raise `EnvironmentLacking` where it ends, or never does."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self._is_well():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise self._failed()
            time.sleep(_PAUSE_S)

    def end(self) -> None:
        """End it; after seconds without asking."""
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _is_well(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.api}/health", timeout=_PATIENCE_S) as answer:
                return json.load(answer) is True
        except (OSError, ValueError):
            return False

    def _failed(self) -> EnvironmentLacking:
        self._told.seek(0)
        lines = self._told.read().decode("utf-8", "replace").strip().splitlines()
        # A trace's last line, before what uvicorn says of it.
        lines = [line for line in lines if _ERROR.match(line)] or lines
        ended = self._process.poll()
        got = "no answer" if ended is None else f"it ended with {ended}"
        return EnvironmentLacking(
            "Prefect's embedded server did not start",
            expected=f"an answer within {_PATIENCE_S:.0f} s",
            got=f"{got}: {lines[-1][:300]}" if lines else got,
            remedy="Is there room, and may this user write to the home folder? A server of your "
            "own can be named by PREFECT_API_URL",
        )


def _environment() -> dict[str, str]:
    """Return what the server sees: Prefect's settings, and none of the stores' or of others."""
    own = {name: value for name, value in os.environ.items() if name.startswith("PREFECT_")}
    as_prefect_does = {
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
    }
    return {**child_environment(), **own, **marks(), **as_prefect_does}
