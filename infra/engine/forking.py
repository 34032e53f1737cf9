"""Step processes as their owner has them: a program of its own, or forked from a fork server.

Importing torch, what exports with it and Inductor takes some 14 s of a processor's time, which each
process of a release would spend again. A fork server (`infra.engine.forkserver`) spends them once:
it imports, runs nothing of anybody's, and forks, as CPython's `multiprocessing.forkserver` does.
What is forked becomes what a program of its own would have become, by the same limits.

A plan goes that way where all it preloads is in a layer, where it is bare (a fork has no secrets to
begin with), and where its environment says nothing that is read when torch is imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO

from handoff.artifacts.isolation import isolated_command
from handoff.infra.engine.environments import child_environment, with_absolute_paths
from handoff.infra.settings import has_gpu

# What is imported, each layer by a process that is forked from the one before: reading a delivery
# doesn't wait for what exports and runs graphs, nor that for what compiles.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("intake", "intake.step"),
    ("inspect.step", "optimize.step", "verify.reference", "verify.step"),
    ("compile.step", "compile.caching.make_tools", "localize.step"),
)
# What takes a delivery in is forked from the one that exports and runs graphs, which it does next.
_FIRST_NEEDED_LAYER = 1
# Read when they are used for the first time, which importing doesn't do.
_READ_ON_USE = frozenset(
    {
        "HOME", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR",
        "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS",
    }
)  # fmt: skip
KILL = b"kill"
MAX_MESSAGE_BYTES = 128 << 10


class ProcessHandle(ABC):
    """A step process and all that it starts."""

    stdin: IO[bytes]

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The process's number, which is that of its group, too; None until it has begun."""

    def begin(self, timeout_s: float) -> int | None:
        """Wait for its number; return None where it has ended without, or hasn't begun by then."""
        return self.pid

    @abstractmethod
    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the process goes on."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return the exit status; None where the process goes on after that time."""

    @abstractmethod
    def kill(self) -> None:
        """End the process and all that it started. Does nothing the second time."""

    def close(self) -> None:
        """End it, and take what is unsent back."""
        self.kill()
        # Closing flushes, and what is left unsent has nobody to go to.
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()


class ProgramProcess(ProcessHandle):
    """A program of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Take the process, which has a pipe for its input and leads a group."""
        assert process.stdin is not None
        self._process, self.stdin = process, process.stdin
        self._is_killed = False

    @property
    def pid(self) -> int | None:  # noqa: D102
        return self._process.pid

    def poll(self) -> int | None:  # noqa: D102
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:  # noqa: D102
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def kill(self) -> None:  # noqa: D102
        # The number may be somebody else's once the process has been waited for.
        if self._is_killed:
            return
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # Where this process is confined itself, its children are of its own group.
        self._process.kill()
        self._process.wait()


class ForkedProcess(ProcessHandle):
    """A process that a fork server has forked, or will have, once it has imported its layer."""

    def __init__(self, stdin: IO[bytes], control: socket.socket) -> None:
        """Take the socket that reports its number and its exit status, and that it's killed by."""
        self.stdin, self._control = stdin, control
        self._pid: int | None = None
        self._exit_status: int | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:  # noqa: D102
        return self._pid

    def begin(self, timeout_s: float) -> int | None:  # noqa: D102
        deadline = time.monotonic() + timeout_s
        while self._pid is None and self._exit_status is None and time.monotonic() < deadline:
            self._read_message(deadline - time.monotonic())
        return self._pid

    def poll(self) -> int | None:  # noqa: D102
        while self._read_message(0):
            pass
        return self._exit_status

    def wait(self, timeout_s: float | None = None) -> int | None:  # noqa: D102
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._exit_status is None:
            remaining_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._read_message(remaining_s) and remaining_s == 0:
                break
        return self._exit_status

    def kill(self) -> None:  # noqa: D102
        if self.poll() is not None:
            return
        with contextlib.suppress(OSError):
            self._control.send(KILL)
        if self._pid is None:
            # The server still imports, and won't fork it when it comes to it.
            with self._lock:
                self._set_exit_status(-signal.SIGKILL)
        self.wait()

    def _read_message(self, timeout_s: float | None) -> bool:
        """Read the server's next message, if there is one; return whether there was.

        Waits for a second at most, since another thread may have ended the process meanwhile.
        """
        with contextlib.suppress(ValueError, OSError):  # closed by that
            select.select(
                [self._control], [], [], min(1.0, 1.0 if timeout_s is None else timeout_s)
            )
        with self._lock:
            if self._exit_status is not None:
                return False
            try:
                message = self._control.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except ConnectionResetError:
                message = b""
            if not message:
                # Its server was killed, and it with that.
                self._set_exit_status(-signal.SIGKILL)
                return True
            kind, number = message.decode().split()
            if kind == "end":
                self._set_exit_status(int(number))
            else:
                self._pid = int(number)
            return True

    def _set_exit_status(self, status: int) -> None:
        self._exit_status = status
        self._control.close()


@dataclass(frozen=True)
class ForkRequest:
    """What a forked process becomes: it limits itself as `launcher` says and works as `worker`."""

    name: str
    launcher: tuple[str, ...]
    worker: tuple[str, ...]


class ForkServers:
    """The fork servers of this process: for each environment, one a layer, when first needed."""

    def __init__(self) -> None:
        """Start none yet."""
        self._lock = threading.Lock()
        self._servers: dict[tuple[object, ...], socket.socket] = {}
        self._is_disabled = False
        # The kernel ends a server together with the thread that started it: this one stays.
        self._start_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fork-servers")
        os.register_at_fork(after_in_child=self.disable)

    def disable(self) -> None:
        """Fork none from here on: a step process is confined, and has no servers of its own."""
        self._is_disabled = True

    def layer_for(self, preload: Collection[str], environment: Mapping[str, str]) -> int | None:
        """Return the layer that such a process is forked from; None for a program of its own.

        Beside a GPU all are: what CUDA does in a fork was never tried.
        """
        if (
            self._is_disabled
            or not preload
            or not _READ_ON_USE.issuperset(environment)
            or has_gpu()
        ):
            return None
        imported: set[str] = set()
        for number, layer in enumerate(LAYERS):
            imported.update(layer)
            if imported.issuperset(preload):
                return number
        return None

    def begin(self, options: Sequence[str]) -> None:
        """Start the servers that a release asks first, which import beside what comes before that.

        `options` are those of Python. Where a server can't be started, `fork` raises the error.
        """
        if self._is_disabled or has_gpu():
            return
        with self._lock, contextlib.suppress(OSError):
            self._server_socket(_FIRST_NEEDED_LAYER, tuple(options), restart=False)

    def fork(
        self, layer: int, request: ForkRequest, log: int, answers: int, options: Sequence[str]
    ) -> ForkedProcess:
        """Have a process forked: its output goes to `log`, its answers to `answers`.

        `options` are those of Python that the server is started with. Returns at once.
        """
        reading, writing = os.pipe()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        message = json.dumps([request.name, request.launcher, request.worker]).encode()
        forked = ForkedProcess(os.fdopen(writing, "wb"), ours)
        try:
            for attempt in range(2):
                with self._lock:
                    server = self._server_socket(layer, tuple(options), restart=bool(attempt))
                    # A server that was killed is started again.
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        socket.send_fds(server, [message], [reading, log, answers, theirs.fileno()])
                        break
        finally:
            os.close(reading)
            theirs.close()
        return forked

    def _server_socket(
        self, layer: int, options: tuple[str, ...], *, restart: bool
    ) -> socket.socket:
        """Return the socket of the layer's server, which is started where there is none."""
        environment = child_environment()
        # Its working folder is another.
        environment |= with_absolute_paths(environment)
        key = (tuple(sorted(environment.items())), options)
        if restart:
            for number in range(len(LAYERS)):
                if stale := self._servers.pop((key, number), None):
                    stale.close()
        if (key, layer) not in self._servers:
            parent = self._server_socket(layer - 1, options, restart=False) if layer else None
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                if parent is None:
                    self._start_executor.submit(
                        _start_server, theirs, environment, options
                    ).result()
                else:
                    socket.send_fds(parent, [json.dumps(layer).encode()], [theirs.fileno()])
            self._servers[key, layer] = ours
        return self._servers[key, layer]


def _start_server(
    requests: socket.socket, environment: dict[str, str], options: tuple[str, ...]
) -> None:
    """Start the first layer's server, in an environment that has nothing to hide."""
    command = isolated_command(
        "handoff.infra.engine.forkserver", str(requests.fileno()), options=options
    )
    subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        pass_fds=(requests.fileno(),), start_new_session=True, env=environment, cwd="/",
    )  # fmt: skip


# Of this process, whose servers end with it.
FORK_SERVERS = ForkServers()
