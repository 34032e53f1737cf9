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

# The variable with the descriptor by which the process that starts programs is asked.
STARTER = "HANDOFF_STARTER"
_PR_SET_PDEATHSIG = 1
# What is longer is not started: a command and the scrubbed environment are some kilobytes.
_MAX_MESSAGE_BYTES = 128 << 10
# Output, the socket that reports the program's end, and errors.
_DESCRIPTORS = 3
_KILL = b"kill"
_EXIT_NOT_STARTED = 127


def end_with_parent(parent: int) -> None:
    """Let the kernel end this process when its parent ends; exit where that one has ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent ended before the child began")


def fork_starter(confine: Callable[[], None]) -> int:
    """Leave a process that starts programs behind; return the descriptor that it is asked by.

    Each program is `confine`d first. The process ends with the calling one, or with what that
    becomes.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        theirs.close()
        _run_and_exit(lambda: _serve_requests(ours, parent, confine))
    ours.close()
    theirs.set_inheritable(True)
    return theirs.detach()


@contextmanager
def running_program(command: Sequence[str], errors: IO[bytes]) -> Iterator[RunningProgram]:
    """Run the command until the body ends: it has no input, and its errors go to a file.

    It is a child of this process, or, where the launcher has left a starter, that one's. It is
    killed where it goes on at the end of the body.
    """
    starter = os.environ.get(STARTER)
    start = _start_by_starter if starter else _start_child
    with killed_on_exit(start(command, errors)) as running:
        yield running


@contextmanager
def killed_on_exit(running: RunningProgram) -> Iterator[RunningProgram]:
    """Give what runs, and kill it where it goes on at the end of the body."""
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        running.output.close()


def request_program(server: socket.socket, request: bytes, *descriptors: int) -> RunningProgram:
    """Ask the process behind a socket to run something in a process of its own.

    The socket keeps messages apart. With the request go descriptors: where the output goes, a
    socket for its end, and the further `descriptors`. By the socket for the end the process reports
    the exit status, as text, and gets the request to kill. Raises `OSError` where there is no
    process any more.
    """
    reading, writing = os.pipe()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    running = _RemoteProgram(os.fdopen(reading, "rb"), ours)
    try:
        socket.send_fds(server, [request], [writing, theirs.fileno(), *descriptors])
    except OSError:
        running.output.close()
        ours.close()
        raise
    finally:
        os.close(writing)
        theirs.close()
    return running


class RunningProgram(ABC):
    """A program that runs: what it prints, and its end."""

    def __init__(self, output: IO[bytes]) -> None:
        self.output = output

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit status, negative for a signal; raise `TimeoutError` when it goes on."""

    @abstractmethod
    def kill(self) -> None:
        """End the program, if it goes on."""


class _ChildProgram(RunningProgram):
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


class _RemoteProgram(RunningProgram):
    def __init__(self, output: IO[bytes], end: socket.socket) -> None:
        super().__init__(output)
        self._end = end
        self._exit_status: int | None = None
        self._is_killed = False

    def wait(self, timeout_s: float | None = None) -> int:
        if self._exit_status is None:
            if not select.select([self._end], [], [], timeout_s)[0]:
                raise TimeoutError("the program goes on")
            try:
                message = self._end.recv(_MAX_MESSAGE_BYTES)
            except ConnectionResetError:
                # The request to kill came when it had ended: its status is still to come.
                message = self._end.recv(_MAX_MESSAGE_BYTES)
            self._end.close()
            # Without a message, its supervisor was killed, and it with that.
            self._exit_status = int(message) if message else -signal.SIGKILL
        return self._exit_status

    def kill(self) -> None:
        if self._exit_status is None and not self._is_killed:
            self._is_killed = True
            # Its end may have been reported already.
            with contextlib.suppress(OSError):
                self._end.send(_KILL)


def _start_child(command: Sequence[str], errors: IO[bytes]) -> RunningProgram:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
    )
    return _ChildProgram(process)


def _start_by_starter(command: Sequence[str], errors: IO[bytes]) -> RunningProgram:
    environment = {name: value for name, value in os.environ.items() if name != STARTER}
    request = json.dumps([list(command), str(Path.cwd()), environment]).encode()
    with socket.socket(fileno=os.dup(int(os.environ[STARTER]))) as starter:
        return request_program(starter, request, errors.fileno())


def _serve_requests(requests: socket.socket, parent: int, confine: Callable[[], None]) -> None:
    """Start what is asked for, each under a process of its own, until nobody can ask any more."""
    end_with_parent(parent)
    # The launcher's own are none of ours: whoever waits for their end would wait for us.
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.closerange(3, requests.fileno())
    os.closerange(requests.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    pid = os.getpid()
    while True:
        request, descriptors, flags, _ = socket.recv_fds(requests, _MAX_MESSAGE_BYTES, _DESCRIPTORS)
        if not request:
            return
        is_truncated = flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        if len(descriptors) == _DESCRIPTORS and not is_truncated and os.fork() == 0:
            requests.close()
            _run_and_exit(partial(_supervise, request, descriptors, pid, confine))
        for descriptor in descriptors:
            os.close(descriptor)


def _supervise(
    request: bytes, descriptors: Sequence[int], parent: int, confine: Callable[[], None]
) -> None:
    """Let a process become the program, and report its end; kill it when that is asked for."""
    end_with_parent(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output, end, errors = descriptors
    pid = os.getpid()
    program = os.fork()
    if program == 0:
        os.close(end)
        _run_and_exit(lambda: _exec_program(request, output, errors, pid, confine))
    os.close(output)
    os.close(errors)
    pidfd = os.pidfd_open(program)
    with socket.socket(fileno=end) as control:
        ready = select.select([pidfd, control.fileno()], [], [])[0]
        if pidfd not in ready:
            # Asked for, or whoever asked is no more.
            control.recv(len(_KILL))
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        _, status = os.waitpid(program, 0)
        control.send(str(os.waitstatus_to_exitcode(status)).encode())


def _exec_program(
    request: bytes, output: int, errors: int, parent: int, confine: Callable[[], None]
) -> None:
    end_with_parent(parent)
    command, folder, environment = json.loads(request)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    confine()
    os.chdir(folder)
    os.execvpe(command[0], command, environment)  # noqa: S606 - confined as the asking process is


def _run_and_exit(act: Callable[[], None]) -> None:
    """Act, and end this process, which is a copy of another and has none of its business."""
    code = _EXIT_NOT_STARTED
    try:
        act()
        code = 0
    except Exception as error:  # noqa: BLE001 - it is printed, and the process ends
        os.write(2, f"{type(error).__name__}: {printable(str(error))}\n".encode())
    finally:
        os._exit(code)
