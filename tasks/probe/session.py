"""One package and the program that calls it: its arguments, and the records that it prints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.record import from_plain
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, TargetRecord
from handoff.artifacts.release.mechanics import RunnerLimits
from handoff.tasks.compile.arm.emulation import emulated_target, emulation_command
from handoff.tasks.probe.messages import ProbeJob
from handoff.tasks.probe.runner_process import LoadedProgram, ProcessResult, run_limited


def write_trial_release(job: ProbeJob, folder: Path) -> None:
    """Write what a pulled folder holds: the packages, and a manifest that says what they are.

    The release's own is written after this gate, since it has this gate's verdict.
    """
    slug = job.slug
    shutil.rmtree(folder, ignore_errors=True)
    (folder / slug).mkdir(parents=True)
    for file in job.files:
        original, copy = job.folder / Path(file.path).name, folder / file.path
        try:
            os.link(original, copy)
        except OSError:
            shutil.copyfile(original, copy)
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

    The cases are in the file of that name. Where the program is `loaded`, what is called is run by
    that.
    """

    job: ProbeJob
    program: Path
    file: str = "cases.safetensors"
    loaded: LoadedProgram | None = None
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
    def limits(self) -> RunnerLimits:
        """What a process may take."""
        return self.job.limits

    def run(self, command: str, options: Sequence[str], threads: str = "1") -> ProcessResult:
        """Run a command on good inputs; keep how to repeat it, and what kept it from its end."""
        result = self.call(command, options)
        self.record_command(command, options)
        if result.outcome is not None:
            reason = f"{result.outcome}: {result.message}"
            self.failures.append(f"{command} of good inputs, {threads} threads a call: {reason}")
        return result

    def call(self, command: str, options: Sequence[str]) -> ProcessResult:
        """Run a command of the program, by an emulator where it is for another processor."""
        arguments = self.arguments(command, options)
        if self.loaded is not None:
            return self.loaded.run(arguments)
        if (target := emulated_target(self.job.slug)) is None:
            return run_limited(self.program, arguments, self.limits)
        first, *rest = emulation_command(target, self.program, arguments)
        return run_limited(Path(first), rest, self.limits)

    def record_command(self, command: str, options: Sequence[str]) -> None:
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
            tolerance = self.job.recipe.tolerance_for(dtype)
            options += ["--tolerance", f"{dtype}={tolerance.atol!r},{tolerance.rtol!r}"]
        return options


def parse_records(kind: type[T], result: ProcessResult, event: str) -> tuple[T, ...]:
    """Return the records of one kind that the program printed, whose fields are the line's."""
    fields = set(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    return tuple(
        from_plain(kind, {name: value for name, value in line.items() if name in fields})
        for line in result.lines
        if line.get("event") == event
    )
