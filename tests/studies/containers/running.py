"""A whole run: its parts in namespaces of their own, what they saw, and that nothing is left."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.marked import require_marks, write_between_marks
from tests.studies.containers import machine
from tests.studies.containers.engine import Engine
from tests.studies.containers.images import (
    base_image,
    build_own,
    foreign_images,
    own_images,
    prepare_base,
    prepare_foreign,
)
from tests.studies.containers.namespaces import left_of, run_apart
from tests.studies.containers.seen import Log, ResultLog, Row, TrialFailed, table

# Where containers reach what listens beside them: a loopback address of the namespace.
BESIDE = "10.210.255.1"


@dataclass(frozen=True)
class Run:
    """A run's name, which its command and its table have, and its parts in their order.

    Each part is given the folder; those of `apart` have a network of their own. `missing` says in
    sentences what this machine lacks.
    """

    name: str
    module: str
    parts: Mapping[str, Callable[[Path], None]]
    apart: frozenset[str]
    missing: Callable[[Path], list[str]]

    def main(self) -> int:
        """Carry out a whole run, or the part that `run_apart` has started."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--folder", type=Path, default=Path("/var/tmp/handoff-stack-run"))
        parser.add_argument("--anew", action="store_true")
        parser.add_argument("--write", type=Path)
        parser.add_argument("--part", choices=tuple(self.parts), help=argparse.SUPPRESS)
        args = parser.parse_args()
        folder: Path = args.folder.absolute()
        if args.part:
            return self._part(args.part, folder)
        require_marks(args.write, self.name)
        findings = self.missing(folder)
        for finding in findings:
            print(f"{self.name}: {finding}", file=sys.stderr)
        return 69 if findings else self._run_parts(folder, is_anew=args.anew, write=args.write)

    def _run_parts(self, folder: Path, *, is_anew: bool, write: Path | None) -> int:
        if is_anew:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        log, seen = log_of(folder), result_log_of(folder)
        for name in ("log", "seen.jsonl", "engine.log", "services.log"):
            (folder / name).unlink(missing_ok=True)
        began, code = time.monotonic(), 0
        for part in self.parts:
            command = [sys.executable, "-m", self.module, f"--folder={folder}", f"--part={part}"]
            code = run_apart(command, folder, with_network=part in self.apart)
            if code:
                break
        try:
            with seen.trying("nothing is left on this machine") as row:
                left = left_of(folder)
                row.require(not left, f"left: {', '.join(left)}")
                row.note("no process, mount, network or control group")
        except TrialFailed:
            code = code or 1
        rows = seen.rows()
        minutes = (time.monotonic() - began) / 60
        here = machine.describe(machine.os_release())
        lines = [
            *table(rows),
            "",
            f"{minutes:.0f} minutes on {here}, {datetime.now(UTC):%Y-%m-%d}.",
        ]
        print("\n".join(["", *lines, "", f"Every command and its output: {log.path}"]), flush=True)
        if write:
            write_between_marks(write, self.name, "\n".join(lines))
        return code or int(not all(row.is_ok for row in rows))

    def _part(self, part: str, folder: Path) -> int:
        signal.signal(signal.SIGTERM, _end)
        try:
            self.parts[part](folder)
        except KeyboardInterrupt:
            return 130
        except (TrialFailed, OSError, RuntimeError) as error:
            log_of(folder).say(f"{self.name}: {error}")
            return 1
        return 0


def _end(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what runs is being taken down
    raise KeyboardInterrupt


def log_of(folder: Path) -> Log:
    """Return the log of a run."""
    return Log(folder / "log")


def result_log_of(folder: Path) -> ResultLog:
    """Return what a run sees."""
    return ResultLog(folder / "seen.jsonl", log_of(folder))


def make_images(engine: Engine, seen: ResultLog) -> None:
    """Have the engine hold every image of compose.yaml; it runs without a network of its own."""
    with seen.trying("engine") as row:
        version = engine.docker("version", "--format", "{{.Server.Version}}").strip()
        row.note(f"Docker Engine {version}")
    attempts: list[tuple[str, Callable[[Row], None]]] = [
        (f"base `{base_image()}`", lambda row: prepare_base(engine, row)),
        *((f"image `{image}`", lambda row, image=image: prepare_foreign(engine, image, row))
          for image in foreign_images()),
        *((f"image `{image}` built", lambda row, image=image: build_own(engine, image, row))
          for image in own_images()),
    ]  # fmt: skip
    for what, attempt in attempts:
        with seen.trying(what) as row:
            attempt(row)


def listen_for_containers() -> None:
    """Let containers reach what listens in this namespace."""
    for words in (["link", "set", "lo", "up"], ["addr", "add", f"{BESIDE}/32", "dev", "lo"]):
        subprocess.run(["ip", *words], check=True)
