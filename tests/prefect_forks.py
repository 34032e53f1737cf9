"""A process that has imported Prefect's server, and forks servers: one for a whole test run.

    python -m tests.prefect_forks SOCKET PROCESS

Of the six seconds of a processor that a server's start takes, more than four are importing it.
Each connection to SOCKET is one server: what asks for it tells port, environment, folder and log,
and gets the exit status when it has ended. A server ends with its connection, and all of them with
PROCESS, which is the run's first, or with the folder that SOCKET is in.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_LOOK_S = 1.0
# The command, and what a server imports only when it starts.
_IMPORTED = (
    "prefect.cli.server", "prefect.cli._server_utils", "prefect.server.api.server", "prefect.flows",
    "alembic.command", "aiosqlite", "anyio._backends._asyncio",
    "uvicorn.lifespan.on", "uvicorn.loops.auto", "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)  # fmt: skip
# What ends a server in order; before it, a server's environment was sent.
TERMINATE = b"terminate"
_MAX_REQUEST_BYTES = 1 << 20


@dataclass
class _Server:
    """A server that was forked, and who asked for it."""

    asker: socket.socket
    process: int
    # Names the process even when another has its number.
    handle: int


class _ForkServer:
    """The listening socket, and the servers that were asked for by it."""

    def __init__(self, listening: socket.socket, first: int) -> None:
        self._listening, self._first = listening, first
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ)
        self._selector.register(first, selectors.EVENT_READ)
        # By what becomes readable: the asker's socket, and the process when it has ended.
        self._servers: dict[int, _Server] = {}

    def run(self, folder: Path) -> None:
        """Fork servers until the run's first process has ended, or its folder is gone."""
        while folder.is_dir():
            for key, _ in self._selector.select(_LOOK_S):
                if key.fileobj is self._listening:
                    asker, _ = self._listening.accept()
                    self._selector.register(asker, selectors.EVENT_READ)
                elif key.fd == self._first:
                    return
                elif isinstance(key.fileobj, socket.socket):
                    self._hear(key.fileobj)
                elif key.fd in self._servers:
                    self._report_end(self._servers[key.fd])

    def _hear(self, asker: socket.socket) -> None:
        if asker.fileno() < 0:
            # Its server ended at the same moment.
            return
        request, server = asker.recv(_MAX_REQUEST_BYTES), self._servers.get(asker.fileno())
        if not request:
            self._selector.unregister(asker)
        if server is not None:
            # Where nobody waits for it any longer it needn't end in order.
            wanted = signal.SIGTERM if request == TERMINATE else signal.SIGKILL
            signal.pidfd_send_signal(server.handle, wanted)
        elif request:
            self._fork(asker, json.loads(request))
        else:
            asker.close()

    def _fork(self, asker: socket.socket, wanted: dict[str, object]) -> None:
        forks = os.getpid()
        process = os.fork()
        if not process:
            # Not even a fork server that was killed leaves any.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != forks:
                os._exit(1)
            self._selector.close()
            for key in [self._listening, asker, *(one.asker for one in self._servers.values())]:
                key.close()
            for handle in [self._first, *{one.handle for one in self._servers.values()}]:
                os.close(handle)
            _serve(wanted)
        server = _Server(asker, process, os.pidfd_open(process))
        self._selector.register(server.handle, selectors.EVENT_READ)
        self._servers[server.handle] = self._servers[asker.fileno()] = server

    def _report_end(self, server: _Server) -> None:
        _, status = os.waitpid(server.process, 0)
        # It may have gone away meanwhile.
        with suppress(OSError):
            server.asker.send(str(os.waitstatus_to_exitcode(status)).encode())
        with suppress(KeyError):
            self._selector.unregister(server.asker)
        self._selector.unregister(server.handle)
        del self._servers[server.handle], self._servers[server.asker.fileno()]
        os.close(server.handle)
        server.asker.close()


def _serve(wanted: dict[str, object]) -> NoReturn:
    """Be the process that `prefect server start` would be; never return."""
    status = 1
    try:
        log = os.open(str(wanted["log"]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.chdir(str(wanted["folder"]))
        environment = wanted["environment"]
        assert isinstance(environment, dict)
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        sys.argv = ["prefect", "server", "start", "--host", "127.0.0.1", "--port",
                    str(wanted["port"])]  # fmt: skip
        status = _start()
    except BaseException:  # noqa: BLE001 - a copy of the fork server mustn't go on as one
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _start() -> int:
    import prefect.cli
    import prefect.context

    # They were read when it was imported, from the fork server's environment: once for where the
    # profiles are, then with those.
    prefect.context.refresh_global_settings_context()
    prefect.context.refresh_global_settings_context()
    try:
        prefect.cli.app()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def main(address: Path, first: int) -> None:
    """Import what a server needs, and listen."""
    for name in _IMPORTED:
        importlib.import_module(name)
    # No application yet: that is made from settings.
    gc.collect()
    gc.freeze()
    # What is sent at once arrives at once.
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # The address is there when it answers.
    listening.bind(f"{address}.begun")
    listening.listen(64)
    Path(f"{address}.begun").rename(address)
    _ForkServer(listening, os.pidfd_open(first)).run(address.parent)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
