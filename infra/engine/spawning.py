"""Starts programs for a confined process beside a GPU: each confined as it is, by none of it.

NVIDIA's driver (570 and newer) writes the names of its threads to `/proc/PID/task/TID/comm`, and
doesn't start where it may not (error 304). Landlock's rules are about files that are there, so that
a process may write below its own entry in `/proc` and never below that of one it starts itself; and
all of `/proc` holds what root could ruin the machine with. So the launcher leaves a process behind,
before it confines itself, that starts programs when it is asked to. All it can be asked is to
confine a new process as the asking one is, with its own entry, and to let it become a program.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from handoff.artifacts.printable import printable

# Which descriptor the process that starts programs is asked by.
STARTER = "HANDOFF_STARTER"
_PR_SET_PDEATHSIG = 1
# What is longer is not started: a command and the scrubbed environment are some kilobytes.
_LONGEST = 128 << 10
# Output, what is said of the program's end, and errors.
_DESCRIPTORS = 3
_KILL = b"kill"
_NOT_STARTED = 127


def end_with(parent: int) -> None:
    """Let the kernel end this process when its parent ends; exit where that one has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent ended before the child began")


def leave_starter(confine: Callable[[], None]) -> int:
    """Leave a process that starts programs behind; return the descriptor that it is asked by.

    Each program is `confine`d first. The process ends with the calling one, or with what that
    becomes.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        theirs.close()
        _and_leave(lambda: _serve(ours, parent, confine))
    ours.close()
    theirs.set_inheritable(True)
    return theirs.detach()


@contextmanager
def started(command: Sequence[str], errors: IO[bytes]) -> Iterator[Running]:
    """Run the command until the body ends: it has no input, and its errors go to a file.

    It is a child of this process, or, where the launcher has left a starter, that one's. It is
    killed where it goes on at the end of the body.
    """
    starter = os.environ.get(STARTER)
    start = _ask_starter if starter else _start
    with until_left(start(command, errors)) as running:
        yield running


@contextmanager
def until_left(running: Running) -> Iterator[Running]:
    """Give what runs, and kill it where it goes on at the end of the body."""
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        running.output.close()


def ask(asked: socket.socket, request: bytes, *given: int) -> Running:
    """Ask the process behind a socket to run something in a process of its own.

    The socket keeps messages apart. With the request go descriptors: where the output goes, a
    socket for its end, and those `given`. By the socket for the end the process tells the exit
    status, as text, and is told to kill. Raises `OSError` where there is no process any more.
    """
    reading, writing = os.pipe()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    running = _Asked(os.fdopen(reading, "rb"), ours)
    try:
        socket.send_fds(asked, [request], [writing, theirs.fileno(), *given])
    except OSError:
        running.output.close()
        ours.close()
        raise
    finally:
        os.close(writing)
        theirs.close()
    return running


class Running(ABC):
    """A program that runs: what it prints, and its end."""

    def __init__(self, output: IO[bytes]) -> None:
        self.output = output

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit status, negative for a signal; raise `TimeoutError` when it goes on."""

    @abstractmethod
    def kill(self) -> None:
        """End the program, if it goes on."""


class _Child(Running):
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        super().__init__(process.stdout)
        self._process = process

    def wait(self, timeout_s: float | None = None) -> int:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(str(error)) from error

    def kill(self) -> None:
        self._process.kill()


class _Asked(Running):
    def __init__(self, output: IO[bytes], end: socket.socket) -> None:
        super().__init__(output)
        self._end = end
        self._code: int | None = None
        self._is_killed = False

    def wait(self, timeout_s: float | None = None) -> int:
        if self._code is None:
            if not select.select([self._end], [], [], timeout_s)[0]:
                raise TimeoutError("the program goes on")
            try:
                told = self._end.recv(_LONGEST)
            except ConnectionResetError:
                # It was told to be killed when it had ended: what is said of that comes after.
                told = self._end.recv(_LONGEST)
            self._end.close()
            # Without a word, what kept it was killed, and it with that.
            self._code = int(told) if told else -signal.SIGKILL
        return self._code

    def kill(self) -> None:
        if self._code is None and not self._is_killed:
            self._is_killed = True
            # Its end may have been told already.
            with contextlib.suppress(OSError):
                self._end.send(_KILL)


def _start(command: Sequence[str], errors: IO[bytes]) -> Running:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
    )
    return _Child(process)


def _ask_starter(command: Sequence[str], errors: IO[bytes]) -> Running:
    environment = {name: value for name, value in os.environ.items() if name != STARTER}
    request = json.dumps([list(command), str(Path.cwd()), environment]).encode()
    with socket.socket(fileno=os.dup(int(os.environ[STARTER]))) as asking:
        return ask(asking, request, errors.fileno())


def _serve(asked: socket.socket, parent: int, confine: Callable[[], None]) -> None:
    """Start what is asked for, each kept by a process of its own, until nobody can ask any more."""
    end_with(parent)
    # The launcher's own are none of ours: whoever waits for their end would wait for us.
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.closerange(3, asked.fileno())
    os.closerange(asked.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    this = os.getpid()
    while True:
        request, descriptors, flags, _ = socket.recv_fds(asked, _LONGEST, _DESCRIPTORS)
        if not request:
            return
        cut = flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        if len(descriptors) == _DESCRIPTORS and not cut and os.fork() == 0:
            asked.close()
            _and_leave(partial(_keep, request, descriptors, this, confine))
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(
    request: bytes, descriptors: Sequence[int], parent: int, confine: Callable[[], None]
) -> None:
    """Let a process become the program, and tell of its end; kill it when that is asked for."""
    end_with(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output, end, errors = descriptors
    this = os.getpid()
    program = os.fork()
    if program == 0:
        os.close(end)
        _and_leave(lambda: _become(request, output, errors, this, confine))
    os.close(output)
    os.close(errors)
    ended = os.pidfd_open(program)
    with socket.socket(fileno=end) as told:
        ready = select.select([ended, told.fileno()], [], [])[0]
        if ended not in ready:
            # Asked for, or whoever asked is no more.
            told.recv(len(_KILL))
            signal.pidfd_send_signal(ended, signal.SIGKILL)
        _, status = os.waitpid(program, 0)
        told.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(
    request: bytes, output: int, errors: int, parent: int, confine: Callable[[], None]
) -> None:
    end_with(parent)
    command, folder, environment = json.loads(request)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    confine()
    os.chdir(folder)
    os.execvpe(command[0], command, environment)  # noqa: S606 - confined as the asking process is


def _and_leave(act: Callable[[], None]) -> None:
    """Act, and end this process, which is a copy of another and has none of its business."""
    code = _NOT_STARTED
    try:
        act()
        code = 0
    except Exception as error:  # noqa: BLE001 - it is told, and the process ends
        os.write(2, f"{type(error).__name__}: {printable(str(error))}\n".encode())
    finally:
        os._exit(code)
