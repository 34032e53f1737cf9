"""The program that calls packages, within limits: however it ends is a result."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from handoff.artifacts.release.mechanics import Outcome, RunnerLimits
from handoff.infra.engine.budget import disk_full_error, failed_on_full_disk
from handoff.infra.engine.spawning import (
    RunningProgram,
    killed_on_exit,
    request_program,
    running_program,
)

# The limits are set by a shell that becomes the program: setting them between fork and exec is not
# safe in a process that has threads.
_LIMIT_SCRIPT = 'ulimit -c 0; ulimit -v "$0"; exec "$@"'
# OpenMP's threads spin while they wait, also for one that has lost its core to a program beside it:
# a probe took 10.3 s, and 8.7 where they sleep (ResNet-18, two cores).
_PASSIVE_WAIT_SCRIPT = 'export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-PASSIVE}"; ' + _LIMIT_SCRIPT
_MESSAGE_CHARACTERS = 300
# libtorch alone takes 2.5 GiB of address space, and 64 MiB more for each thread.
_MIN_MEMORY_BYTES = 8 << 30
# Reserved for what it says, where the file system can.
_STDERR_BYTES = 64 << 10
_NOT_RESERVED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
# What the loaded program says, and is asked (`infra/runner/each.h`).
_LOADED, _RUN = b"loaded", b"!"
# The exit status of a replay that ran and found other outputs, which its lines report.
_OTHER_OUTPUTS = 3


@dataclass(frozen=True)
class ProcessResult:
    """What a process printed as lines of JSON, and how it ended.

    `outcome` is None for a process that did what it was asked to do; `message` is its last words.
    """

    lines: tuple[dict[str, Any], ...]
    outcome: Outcome | None
    message: str


def run_limited(program: Path, arguments: Sequence[str], limits: RunnerLimits) -> ProcessResult:
    """Run the program until it ends, or prints nothing for `limits.answer_s` seconds.

    Whatever the program does is a result; `EnvironmentLacking` is raised where it found no room on
    a disk. The command is printed, for the log.
    """
    command = [str(program), *arguments]
    _log_command(command)
    with (
        _stderr_file() as stderr,
        running_program(_limit_memory(command, limits), stderr) as running,
    ):
        return _wait_for_result(running, stderr, limits)


class LoadedProgram:
    """The program, loaded once: what it is to run is run by a process that is forked from it.

    Loading libtorch takes longer than a short command. What is forked from has called nothing, so
    that a fork finds what a program of its own would; but all have the same layout of memory.
    Nothing is timed by it, since it runs beside others: threads sleep while they wait, unless the
    environment says how they wait. It isn't for a GPU, whose programs are started in a way of their
    own (`infra.engine.spawning`). A command can't report an end that isn't its own
    (`infra/runner/each.h`). To be closed.
    """

    def __init__(self, program: Path, limits: RunnerLimits) -> None:
        """Hold the program, which is loaded when it is asked for something, and the limits."""
        self._program, self._limits = program, limits
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def run(self, arguments: Sequence[str]) -> ProcessResult:
        """Do what `run_limited` does; one at a time."""
        _log_command([str(self._program), *arguments])
        with _stderr_file() as stderr, tempfile.TemporaryFile() as arguments_file:
            arguments_file.writelines(os.fsencode(argument) + b"\0" for argument in arguments)
            arguments_file.flush()
            forked = self._fork(stderr.fileno(), arguments_file.fileno())
            if isinstance(forked, ProcessResult):
                return forked
            with killed_on_exit(forked) as running:
                result = _wait_for_result(running, stderr, self._limits)
                if result.outcome == "hung":
                    self._kill(running)
                return result

    def close(self) -> None:
        """End it, and what it runs."""
        process, self._process = self._process, None
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait()

    def _fork(self, *descriptors: int) -> RunningProgram | ProcessResult:
        """Return what runs a command, or how loading the program has ended."""
        # What was killed meanwhile, as for lack of memory, is no word about the next command.
        for _ in range(2):
            connection = self._socket or self._load()
            if isinstance(connection, ProcessResult):
                return connection
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                return request_program(connection, _RUN, *descriptors)
            self.close()
        return ProcessResult((), "crashed", "it ends as soon as it was loaded")

    def _load(self) -> socket.socket | ProcessResult:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        with theirs, _stderr_file() as stderr:
            command = [str(self._program), "each", str(theirs.fileno())]
            process = self._process = subprocess.Popen(
                _limit_memory(command, self._limits, _PASSIVE_WAIT_SCRIPT),
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=stderr,
            )  # fmt: skip
            theirs.close()
            is_ready = bool(select.select([ours], [], [], self._limits.answer_s)[0])
            if is_ready and ours.recv(len(_LOADED)) == _LOADED:
                return ours
            if not is_ready:
                process.kill()
            code = process.wait()
            self.close()
            return _parse_result(
                b"", code if is_ready else None, _read_stderr(stderr), self._limits
            )

    def _kill(self, running: RunningProgram) -> None:
        """End a command that hangs; and what it was forked from where that doesn't."""
        running.kill()
        try:
            running.wait(self._limits.answer_s)
        except TimeoutError:
            self.close()


def _log_command(command: Sequence[str]) -> None:
    print("runs:", shlex.join(command), flush=True)  # noqa: T201 - a step's log


def _limit_memory(
    command: Sequence[str], limits: RunnerLimits, script: str = _LIMIT_SCRIPT
) -> list[str]:
    """Return the command that runs another within the limit of memory."""
    # No more than leaves the machine to the others on it.
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = (
        str(min(limits.memory_bytes, max(_MIN_MEMORY_BYTES, physical * 3 // 4)) // 1024)
        if limits.memory_bytes
        else "unlimited"
    )
    return ["sh", "-c", script, memory, *command]


def _wait_for_result(
    running: RunningProgram, stderr: IO[bytes], limits: RunnerLimits
) -> ProcessResult:
    text, code = _read_stdout(running, limits.answer_s)
    return _parse_result(text, code, _read_stderr(stderr), limits)


@contextlib.contextmanager
def _stderr_file() -> Iterator[IO[bytes]]:
    """Give a file for what a program says at its end, with room for it on a disk that gets full."""
    with tempfile.TemporaryFile() as file:
        try:
            os.posix_fallocate(file.fileno(), 0, _STDERR_BYTES)
        except OSError as error:
            if error.errno not in _NOT_RESERVED:
                raise
        yield file


def _read_stderr(file: IO[bytes]) -> bytes:
    # Others write by the same place in it, and what is reserved is zeros.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).rstrip(b"\0")


def _parse_result(
    text: bytes, code: int | None, stderr: bytes, limits: RunnerLimits
) -> ProcessResult:
    lines = tuple(_parse(text))
    if code is None:
        return ProcessResult(lines, "hung", f"no answer within {limits.answer_s:g} s")
    message = stderr.decode(errors="replace")
    has_failed = code not in (0, _OTHER_OUTPUTS)
    if has_failed and failed_on_full_disk(message, Path.cwd()):
        # That is no word about the package.
        raise disk_full_error("handoff-runner", Path.cwd())
    return ProcessResult(lines, *_classify(code, message))


def _read_stdout(running: RunningProgram, answer_s: float) -> tuple[bytes, int | None]:
    """Return what the program printed, and its exit status; None if it didn't end in time."""
    text = b""
    while select.select([running.output], [], [], answer_s)[0]:
        piece = os.read(running.output.fileno(), 65536)
        if not piece:
            try:
                return text, running.wait(answer_s)
            except TimeoutError:
                return text, None
        text += piece
    return text, None


def _parse(text: bytes) -> Iterator[dict[str, Any]]:
    """Give each line that is an object of JSON; a program that crashes may leave half of one."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            plain = json.loads(line)
            if isinstance(plain, dict):
                yield plain


def _classify(code: int, stderr: str) -> tuple[Outcome | None, str]:
    """Return how a process ended, None for well, and its own words."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    if code in (0, _OTHER_OUTPUTS):
        return None, ""
    if code > 0:
        return "refused", (lines or [f"exit status {code}"])[-1][:_MESSAGE_CHARACTERS]
    name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
    # What an uncaught exception says of itself, else the last line that anybody wrote.
    cause = next((line for line in lines if "what():" in line), (lines or [""])[-1])
    message = f"{name}: {cause.strip()}" if cause else name
    # Nobody else kills this process: the kernel does when the machine is out of memory.
    if name == "SIGKILL" or any("bad_alloc" in line for line in lines):
        return "out of memory", message[:_MESSAGE_CHARACTERS]
    return "crashed", message[:_MESSAGE_CHARACTERS]
