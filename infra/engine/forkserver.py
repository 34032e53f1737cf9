"""A fork server: it has imported what step processes need, and they are forked from it.

    python -m handoff.infra.engine.forkserver FD

It is asked by the descriptor, a socket that keeps messages apart. `LAYER`, with one descriptor, has
it fork a server that imports that layer, too, and is asked by that descriptor. `[name, arguments of
the launcher, arguments of the worker]`, with four, has it fork a step process: its input, its
output and its answers are the first three; by the last the process's number and its end are told
(`pid N`, `end STATUS`), and it is killed. A server ends when nobody can ask any more, and what it
has forked ends with it.

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
from handoff.infra.engine.forking import FORK_SERVERS, LAYERS, LONGEST
from handoff.infra.engine.spawning import end_with

_DESCRIPTORS = 4
_ANSWERS = 3
# Beyond those that a process is to have.
_ABOVE = 16
_PR_SET_NAME = 15


class _Server:
    """Forks when it is asked to, and tells of the ends of what it has forked."""

    def __init__(self, asked: socket.socket, layer: int) -> None:
        self._asked, self._layer = asked, layer
        self._failure = ""
        self._ready = selectors.DefaultSelector()
        self._this = os.getpid()
        self._forked: set[int] = set()

    def serve(self) -> None:
        """Import the layer, then do what is asked until nobody can ask any more."""
        try:
            for module in LAYERS[self._layer]:
                worker.import_step(module)
        except Exception:  # noqa: BLE001 - whatever it is, the processes' logs tell it
            self._failure = traceback.format_exc()
        # Nothing of it is written to when garbage is looked for, so that all share one copy.
        gc.collect()
        gc.freeze()
        self._ready.register(self._asked, selectors.EVENT_READ, self._take)
        while True:
            for key, _ in self._ready.select():
                if key.data() is False:
                    return

    def _take(self) -> bool:
        """Do what is asked next; return False where nobody can ask any more."""
        request, descriptors, *_ = socket.recv_fds(self._asked, LONGEST, _DESCRIPTORS)
        if not request:
            return False
        asked = json.loads(request)
        if isinstance(asked, int):
            # Where that can't be, nobody holds the other end, and whoever asks there is told so.
            with contextlib.suppress(OSError):
                if os.fork() == 0:
                    _and_leave(partial(self._become_server, asked, descriptors[0]))
            os.close(descriptors[0])
        else:
            self._fork(asked, descriptors)
        return True

    def _fork(self, asked: list[object], descriptors: list[int]) -> None:
        told = socket.socket(fileno=descriptors.pop())
        try:
            if _is_over(told):
                told.close()
            elif (pid := self._forked_worker(asked, descriptors)) is None:
                _tell(told, "end", 1)
                told.close()
            else:
                _tell(told, "pid", pid)
                self._watch(pid, told)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _forked_worker(self, asked: list[object], descriptors: list[int]) -> int | None:
        """Fork a step process; return None where that can't be, as its log says then."""
        failure = self._failure
        if not failure:
            try:
                pid = os.fork()
            except OSError as error:
                failure = f"no process could be forked: {error}\n"
            else:
                if pid == 0:
                    _and_leave(partial(self._become_worker, asked, descriptors))
                return pid
        _, output, _ = descriptors
        os.write(output, failure.encode())
        return None

    def _watch(self, pid: int, told: socket.socket) -> None:
        """Look for the process's end, and for the word to end it."""
        self._forked.add(pid)
        ended = os.pidfd_open(pid)
        end = partial(self._end, pid, ended, told)
        for either in (ended, told):
            self._ready.register(either, selectors.EVENT_READ, end)

    def _end(self, pid: int, ended: int, told: socket.socket) -> None:
        """End what was forked and all that it started, where it hasn't ended; tell its status."""
        if pid not in self._forked:
            return  # both were ready at once
        self._forked.remove(pid)
        # Until it is waited for, its number is nobody else's.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        self._ready.unregister(ended)
        self._ready.unregister(told)
        os.close(ended)
        _tell(told, "end", os.waitstatus_to_exitcode(status))
        told.close()

    def _become_server(self, layer: int, descriptor: int) -> None:
        end_with(self._this)
        asked = os.dup2(fcntl.fcntl(descriptor, fcntl.F_DUPFD, _ABOVE), _ANSWERS)
        os.closerange(_ANSWERS + 1, os.sysconf("SC_OPEN_MAX"))
        _Server(socket.socket(fileno=asked), layer).serve()

    def _become_worker(self, asked: list[object], descriptors: list[int]) -> None:
        end_with(self._this)
        os.setsid()
        name, launcher, arguments = asked
        assert isinstance(name, str)
        assert isinstance(launcher, list)
        assert isinstance(arguments, list)
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
        reading, output, answers = (fcntl.fcntl(d, fcntl.F_DUPFD, _ABOVE) for d in descriptors)
        for descriptor, to in ((reading, 0), (output, 1), (output, 2), (answers, _ANSWERS)):
            os.dup2(descriptor, to)
        os.closerange(_ANSWERS + 1, os.sysconf("SC_OPEN_MAX"))
        os.set_inheritable(_ANSWERS, False)
        environment = sandbox.limit(launcher)
        os.environ.clear()
        os.environ.update(environment)
        # What was found out before it had a folder of its own, and what siblings would share.
        tempfile.tempdir = None
        import numpy
        import torch

        torch.default_generator.seed()
        numpy.random.seed()
        worker.main(["--answers", str(_ANSWERS), *arguments])


def _is_over(told: socket.socket) -> bool:
    """Tell whether the process is to be killed, before it was forked."""
    told.setblocking(False)
    try:
        told.recv(LONGEST)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    return True


def _tell(told: socket.socket, what: str, number: int) -> None:
    # Whoever asked may be gone.
    with contextlib.suppress(OSError):
        told.send(f"{what} {number}".encode())


def _and_leave(act: partial[None]) -> NoReturn:
    """Do what a fork is for, and end it: nothing of the server's own goes on in it."""
    code = 1
    try:
        act()
        code = 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            os.write(2, ended.code.encode())
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - the log tells it; the fork ends in any case
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def main(arguments: list[str]) -> None:
    """Serve the first layer until nobody can ask any more."""
    end_with(os.getppid())
    FORK_SERVERS.turn_off()
    _Server(socket.socket(fileno=int(arguments[0])), 0).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
