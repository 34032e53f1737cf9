"""Run the C++ runner with limits on its time and memory; however it ends is a result."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
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
    print("runs:", shlex.join(command), flush=True)  # noqa: T201 - a step's log
    # No more than leaves the machine to the others on it.
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = (
        str(min(limits.memory_bytes, max(_LEAST_BYTES, there * 3 // 4)) // 1024)
        if limits.memory_bytes
        else "unlimited"
    )
    with tempfile.TemporaryFile() as errors:
        with started(["sh", "-c", _LIMITED, memory, *command], errors) as running:
            text, code = _read(running, limits.answer_s)
        errors.seek(0)
        complaint = errors.read().decode(errors="replace")
    lines = tuple(_parse(text))
    if code is None:
        return Ended(lines, "hung", f"no answer within {limits.answer_s:g} s")
    return Ended(lines, *_classify(code, complaint))


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
