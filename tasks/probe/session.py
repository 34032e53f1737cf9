"""One package and the program that calls it, within limits: however it ends is a result."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.record import from_plain
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, TargetRecord
from handoff.artifacts.release.mechanics import Limits, Outcome
from handoff.infra.engine.starting import Running, started
from handoff.tasks.compile.arm.emulation import emulated_target, emulating
from handoff.tasks.probe.messages import ProbeJob

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


def write_trial_release(job: ProbeJob, folder: Path) -> None:
    """Write what a pulled folder holds: the packages, and a manifest that says what they are.

    The release's own is written after this gate, since it tells its verdict.
    """
    slug = job.slug
    shutil.rmtree(folder, ignore_errors=True)
    (folder / slug).mkdir(parents=True)
    for file in job.files:
        original, place = job.folder / Path(file.path).name, folder / file.path
        try:
            os.link(original, place)
        except OSError:
            shutil.copyfile(original, place)
    record = TargetRecord(slug, accepted=True, reasons=(), files=job.files, fit=job.fit)
    nothing = digest_bytes(b"")
    manifest = Manifest(
        model="trial", delivery=nothing, fingerprint=nothing, verdict="sound",
        signature=job.signature, recipe=job.recipe, lineage=Lineage(), targets=(record,),
    )  # fmt: skip
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())


T = TypeVar("T")


@dataclass
class Session:
    """Runs `program` on the packages of `job`, whose release and cases lie in its workspace.

    The cases are in the file of that name.
    """

    job: ProbeJob
    program: Path
    file: str = "cases.safetensors"
    failures: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    @property
    def release(self) -> Path:
        """The folder of the release on trial."""
        return self.job.workspace / "release"

    @property
    def cases(self) -> Path:
        """The golden inputs and outputs."""
        return self.job.workspace / self.file

    @property
    def limits(self) -> Limits:
        """What a process may take."""
        return self.job.limits

    def run(self, command: str, options: Sequence[str], threads: str = "1") -> Ended:
        """Run a command on good inputs; keep how to repeat it, and what kept it from its end."""
        ended = self.call(command, options)
        self.note(command, options)
        if ended.outcome is not None:
            told = f"{ended.outcome}: {ended.told}"
            self.failures.append(f"{command} of good inputs, {threads} threads a call: {told}")
        return ended

    def call(self, command: str, options: Sequence[str]) -> Ended:
        """Run a command of the program, by an emulator where it is for another processor."""
        arguments = self.arguments(command, options)
        if (target := emulated_target(self.job.slug)) is None:
            return run_limited(self.program, arguments, self.limits)
        first, *rest = emulating(target, self.program, arguments)
        return run_limited(Path(first), rest, self.limits)

    def note(self, command: str, options: Sequence[str]) -> None:
        """Keep how to repeat a command."""
        places = ["RELEASE", "CASES", "--key", "KEY", "--target", self.job.slug]
        self.commands.append(" ".join(["handoff-runner", command, *places, *options]))

    def arguments(self, command: str, options: Sequence[str]) -> list[str]:
        """Return the program's arguments."""
        where = [str(self.release), str(self.cases), "--target", self.job.slug]
        # Nothing is signed before it was accepted.
        return [command, *where, "--unsigned", *options]

    def tolerances(self) -> list[str]:
        """Return the options that say which differences were agreed."""
        options = []
        for dtype in ("float64", "float32", "float16", "bfloat16"):
            agreed = self.job.recipe.tolerance_for(dtype)
            options += ["--tolerance", f"{dtype}={agreed.atol!r},{agreed.rtol!r}"]
        return options


def told(kind: type[T], ended: Ended, event: str) -> tuple[T, ...]:
    """Return the records of one kind that the program printed, whose fields are the line's."""
    wanted = set(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    return tuple(
        from_plain(kind, {name: value for name, value in line.items() if name in wanted})
        for line in ended.lines
        if line.get("event") == event
    )
