"""A fork server: it has imported what step processes need, and they are forked from it.

    python -m handoff.infra.engine.forkserver FD

Its requests come by the descriptor, a socket that keeps messages apart. `LAYER`, with one
descriptor, has it fork a server that imports that layer, too, and gets its requests by that
descriptor. `[name, arguments of the launcher, arguments of the worker]`, with four, has it fork a
step process: its input, its output and its answers are the first three; by the last the process's
number and its end are reported (`pid N`, `end STATUS`), and it is killed. A server ends when nobody
can ask any more, and what it has forked ends with it.

No server ever reads a delivery, or has a secret in its memory: its environment is that of a
confined process. What it forks sees the same memory layout as its siblings, which a program of its
own would not; each is confined before it reads anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import traceback
from functools import partial
from typing import NoReturn

from handoff.infra.engine import sandbox, worker
from handoff.infra.engine.forking import FORK_SERVERS, LAYERS, MAX_MESSAGE_BYTES
from handoff.infra.engine.spawning import end_with_parent

_DESCRIPTORS = 4
_ANSWERS_FD = 3
# Beyond those that a process is to have.
_MIN_DUPLICATE = 16
_PR_SET_NAME = 15


class _Server:
    """Forks when it is asked to, and reports the ends of what it has forked."""

    def __init__(self, requests: socket.socket, layer: int) -> None:
        self._requests, self._layer = requests, layer
        self._failure = ""
        self._ready = selectors.DefaultSelector()
        self._pid = os.getpid()
        self._children: set[int] = set()

    def serve(self) -> None:
        """Import the layer, then do what is asked until nobody can ask any more."""
        try:
            for module in LAYERS[self._layer]:
                worker.import_step(module)
        except Exception:  # noqa: BLE001 - whatever it is, the processes' logs show it
            self._failure = traceback.format_exc()
        # Nothing of it is written to when garbage is looked for, so that all share one copy.
        gc.collect()
        gc.freeze()
        self._ready.register(self._requests, selectors.EVENT_READ, self._handle_request)
        while True:
            for key, _ in self._ready.select():
                if key.data() is False:
                    return

    def _handle_request(self) -> bool:
        """Do what is asked next; return False where nobody can ask any more."""
        message, descriptors, *_ = socket.recv_fds(self._requests, MAX_MESSAGE_BYTES, _DESCRIPTORS)
        if not message:
            return False
        request = json.loads(message)
        if isinstance(request, int):
            # Where that can't be, nobody holds the other end, and whoever asks there sees that.
            with contextlib.suppress(OSError):
                if os.fork() == 0:
                    _run_and_exit(partial(self._become_server, request, descriptors[0]))
            os.close(descriptors[0])
        else:
            self._fork_step_process(request, descriptors)
        return True

    def _fork_step_process(self, request: list[object], descriptors: list[int]) -> None:
        control = socket.socket(fileno=descriptors.pop())
        try:
            if _is_cancelled(control):
                control.close()
            elif (pid := self._fork_worker(request, descriptors)) is None:
                _report(control, "end", 1)
                control.close()
            else:
                _report(control, "pid", pid)
                self._watch(pid, control)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork_worker(self, request: list[object], descriptors: list[int]) -> int | None:
        """Fork a step process; return None where that can't be, as its log says then."""
        failure = self._failure
        if not failure:
            try:
                pid = os.fork()
            except OSError as error:
                failure = f"no process could be forked: {error}\n"
            else:
                if pid == 0:
                    _run_and_exit(partial(self._become_worker, request, descriptors))
                return pid
        _, output, _ = descriptors
        os.write(output, failure.encode())
        return None

    def _watch(self, pid: int, control: socket.socket) -> None:
        """Look for the process's end, and for a request to end it."""
        self._children.add(pid)
        pidfd = os.pidfd_open(pid)
        end = partial(self._end, pid, pidfd, control)
        for source in (pidfd, control):
            self._ready.register(source, selectors.EVENT_READ, end)

    def _end(self, pid: int, pidfd: int, control: socket.socket) -> None:
        """End what was forked and all that it started, where it hasn't ended; report its status."""
        if pid not in self._children:
            return  # both were ready at once
        self._children.remove(pid)
        # Until it is waited for, its number is nobody else's.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        self._ready.unregister(pidfd)
        self._ready.unregister(control)
        os.close(pidfd)
        _report(control, "end", os.waitstatus_to_exitcode(status))
        control.close()

    def _become_server(self, layer: int, descriptor: int) -> None:
        end_with_parent(self._pid)
        requests = os.dup2(fcntl.fcntl(descriptor, fcntl.F_DUPFD, _MIN_DUPLICATE), _ANSWERS_FD)
        os.closerange(_ANSWERS_FD + 1, os.sysconf("SC_OPEN_MAX"))
        _Server(socket.socket(fileno=requests), layer).serve()

    def _become_worker(self, request: list[object], descriptors: list[int]) -> None:
        end_with_parent(self._pid)
        os.setsid()
        name, launcher, arguments = request
        assert isinstance(name, str)
        assert isinstance(launcher, list)
        assert isinstance(arguments, list)
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
        reading, output, answers = (
            fcntl.fcntl(d, fcntl.F_DUPFD, _MIN_DUPLICATE) for d in descriptors
        )
        for descriptor, target in ((reading, 0), (output, 1), (output, 2), (answers, _ANSWERS_FD)):
            os.dup2(descriptor, target)
        os.closerange(_ANSWERS_FD + 1, os.sysconf("SC_OPEN_MAX"))
        os.set_inheritable(_ANSWERS_FD, False)
        environment = sandbox.limit(launcher)
        os.environ.clear()
        os.environ.update(environment)
        # What was found out before it had a folder of its own, and what siblings would share.
        tempfile.tempdir = None
        import numpy
        import torch

        torch.default_generator.seed()
        numpy.random.seed()
        worker.main(["--answers", str(_ANSWERS_FD), *arguments])


def _is_cancelled(control: socket.socket) -> bool:
    """Return whether the process is to be killed, before it was forked."""
    control.setblocking(False)
    try:
        control.recv(MAX_MESSAGE_BYTES)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    return True


def _report(control: socket.socket, kind: str, number: int) -> None:
    # Whoever asked may be gone.
    with contextlib.suppress(OSError):
        control.send(f"{kind} {number}".encode())


def _run_and_exit(act: partial[None]) -> NoReturn:
    """Do what a fork is for, and end it: nothing of the server's own goes on in it."""
    code = 1
    try:
        act()
        code = 0
    except SystemExit as exiting:
        if isinstance(exiting.code, str):
            os.write(2, exiting.code.encode())
        code = exiting.code if isinstance(exiting.code, int) else int(exiting.code is not None)
    except BaseException:  # noqa: BLE001 - the log shows it; the fork ends in any case
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def main(arguments: list[str]) -> None:
    """Serve the first layer until nobody can ask any more."""
    end_with_parent(os.getppid())
    FORK_SERVERS.disable()
    _Server(socket.socket(fileno=int(arguments[0])), 0).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
