"""The program that calls packages, within limits: however it ends is a result."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handoff.artifacts.release.mechanics import Limits, Outcome
from handoff.infra.engine.starting import Running, started

# The limits are set by a shell that becomes the program: setting them between fork and exec is not
# safe in a process that has threads.
_LIMITED = 'ulimit -c 0; ulimit -v "$0"; exec "$@"'
_MESSAGE_CHARACTERS = 300
# libtorch alone takes 2.5 GiB of address space, and 64 MiB more for each thread.
_LEAST_BYTES = 8 << 30
# The exit status of a replay that ran and found other outputs, which its lines tell.
_OTHER_OUTPUTS = 3


@dataclass(frozen=True)
class Ended:
    """What a process printed as lines of JSON, and how it ended.

    `outcome` is None for a process that did what it was asked to do; `told` are its last words.
    """

    lines: tuple[dict[str, Any], ...]
    outcome: Outcome | None
    told: str


def run_limited(program: Path, arguments: Sequence[str], limits: Limits) -> Ended:
    """Run the program until it ends, or prints nothing for `limits.answer_s` seconds.

    Never raises for what the program does. The command is printed, for the log.
    """
    command = [str(program), *arguments]
    _note(command)
    with tempfile.TemporaryFile() as errors:
        with started(_limited(command, limits), errors) as running:
            text, code = _read(running, limits.answer_s)
        errors.seek(0)
        complaint = errors.read()
    return _ended(text, code, complaint, limits)


class LoadedProgram:
    """The program, loaded once: what it is to run is run by a process that is forked from it.

    Loading libtorch takes longer than a short command. Nothing was called in what is forked from,
    so that the forks are what a program of their own would have been; it isn't for a GPU, whose
    programs are started in a way of their own (`infra.engine.starting`). To be closed.
    """

    def __init__(self, program: Path, limits: Limits) -> None:
        """Hold the program, which is loaded when it is asked for something, and the limits."""
        self._program, self._limits = program, limits
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, arguments: Sequence[str]) -> Ended:
        """Do what `run_limited` does; one at a time."""
        command = [str(self._program), *arguments]
        _note(command)
        written = os.fstat(self._errors.fileno()).st_size
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        # Where it has ended, that is read.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps([*arguments]).encode() + b"\n")
            process.stdin.flush()
        text, code = self._answer(process)
        said = os.fstat(self._errors.fileno()).st_size - written
        complaint = os.pread(self._errors.fileno(), said, written)
        return _ended(text, code, complaint, self._limits)

    def close(self) -> None:
        """End it, and what it runs."""
        self._end()
        self._errors.close()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            _limited([str(self._program), "each"], self._limits),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip

    def _answer(self, process: subprocess.Popen[bytes]) -> tuple[bytes, int | None]:
        """Return what was printed, and the exit status; None if it didn't end in time."""
        assert process.stdout is not None
        text = b""
        while select.select([process.stdout], [], [], self._limits.answer_s)[0]:
            piece = os.read(process.stdout.fileno(), 65536)
            if not piece:
                # The program itself ends.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(self._limits.answer_s)
                code = process.returncode
                self._end()
                return text, code
            text += piece
            # Nothing is printed after it, before the next is asked for.
            last = text[text.rfind(b"\n", 0, -1) + 1 :]
            for told in _parse(last) if last.endswith(b"\n") else ():
                if told.get("event") == "ended":
                    return text, int(told["status"])
        self._end()
        return text, None

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.kill()
        process.wait()
        process.stdout.close()
        # What it hasn't read is lost with it.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _note(command: Sequence[str]) -> None:
    print("runs:", shlex.join(command), flush=True)  # noqa: T201 - a step's log


def _limited(command: Sequence[str], limits: Limits) -> list[str]:
    """Return the command that runs another within the limit of memory."""
    # No more than leaves the machine to the others on it.
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = (
        str(min(limits.memory_bytes, max(_LEAST_BYTES, there * 3 // 4)) // 1024)
        if limits.memory_bytes
        else "unlimited"
    )
    return ["sh", "-c", _LIMITED, memory, *command]


def _ended(text: bytes, code: int | None, complaint: bytes, limits: Limits) -> Ended:
    lines = tuple(_parse(text))
    if code is None:
        return Ended(lines, "hung", f"no answer within {limits.answer_s:g} s")
    return Ended(lines, *_classify(code, complaint.decode(errors="replace")))


def _read(running: Running, answer_s: float) -> tuple[bytes, int | None]:
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


def _classify(code: int, complaint: str) -> tuple[Outcome | None, str]:
    """Return how a process ended, None for well, and its own words."""
    said = [line for line in complaint.splitlines() if line.strip()]
    if code in (0, _OTHER_OUTPUTS):
        return None, ""
    if code > 0:
        return "refused", (said or [f"exit status {code}"])[-1][:_MESSAGE_CHARACTERS]
    name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
    # What an uncaught exception says of itself, else the last line that anybody wrote.
    cause = next((line for line in said if "what():" in line), (said or [""])[-1])
    told = f"{name}: {cause.strip()}" if cause else name
    # Nobody else kills this process: the kernel does when the machine is out of memory.
    if name == "SIGKILL" or any("bad_alloc" in line for line in said):
        return "out of memory", told[:_MESSAGE_CHARACTERS]
    return "crashed", told[:_MESSAGE_CHARACTERS]
