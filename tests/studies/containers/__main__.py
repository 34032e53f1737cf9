"""python -m tests.studies.containers: the served stack as containers, up, used, and down.

`--folder` is where engine, images and log are (they stay for the next run, what ran does not),
`--anew` removes it first, `--write FILE` puts what was seen between its marks in a Markdown file.
Ends with 1 where anything failed, with 69 where this machine lacks something, with 130 when it was
asked to end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.infra.stack.stack_files import TOOLS
from tests.marked import write_between_marks
from tests.studies.containers import machine
from tests.studies.containers.engine import find_engine
from tests.studies.containers.images import (
    base_image,
    build_own,
    foreign_images,
    own_images,
    prepare_base,
    prepare_foreign,
)
from tests.studies.containers.namespaces import left_of, run_apart
from tests.studies.containers.receiver import receiving
from tests.studies.containers.seen import Failed, Log, Sightings, table
from tests.studies.containers.stack import BLOCK, ComposedStack
from tests.studies.containers.trial import try_all

# Where containers reach what listens beside them: a loopback address of the namespace.
_BESIDE = "10.210.255.1"


def main() -> int:
    """Carry out a whole run, or the part that `run_apart` has started."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/handoff-stack-run"))
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--part", choices=("images", "trial"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder: Path = given.folder.absolute()
    if given.part:
        return _part(given.part, folder)
    lacks = machine.missing(
        folder, TOOLS / "docker-compose", user=os.geteuid(), release=machine.os_release(),
        path=f"{os.environ['PATH']}:/usr/sbin:/sbin",
    )  # fmt: skip
    for lack in lacks:
        print(f"stack-run: {lack}", file=sys.stderr)
    return 69 if lacks else _run(folder, is_anew=given.anew, write=given.write)


def _run(folder: Path, *, is_anew: bool, write: Path | None) -> int:
    if is_anew:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    log, seen = _log(folder), Sightings(folder / "seen.jsonl", _log(folder))
    for name in ("log", "seen.jsonl", "engine.log", "services.log"):
        (folder / name).unlink(missing_ok=True)
    began, code = time.monotonic(), 0
    for part in ("images", "trial"):
        command = [sys.executable, "-m", "tests.studies.containers", f"--folder={folder}"]
        code = run_apart([*command, f"--part={part}"], folder, with_network=part == "trial")
        if code:
            break
    try:
        with seen.trying("nothing is left on this machine") as row:
            left = left_of(folder)
            row.require(not left, f"left: {', '.join(left)}")
            row.note("no process, mount, network or control group")
    except Failed:
        code = code or 1
    rows = seen.rows()
    minutes = (time.monotonic() - began) / 60
    told = [*table(rows), "", f"{minutes:.0f} minutes on {machine.describe(machine.os_release())}, "
            f"{datetime.now(UTC):%Y-%m-%d}."]  # fmt: skip
    print("\n".join(["", *told, "", f"Every command and its output: {log.path}"]), flush=True)
    if write:
        write_between_marks(write, "stack-run", "\n".join(told))
    return code or int(not all(row.is_ok for row in rows))


def _part(part: str, folder: Path) -> int:
    signal.signal(signal.SIGTERM, _end)
    try:
        (_make_images if part == "images" else _try_stack)(folder)
    except KeyboardInterrupt:
        return 130
    except (Failed, OSError, RuntimeError) as error:
        _log(folder).say(f"stack-run: {error}")
        return 1
    return 0


def _end(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what runs is being taken down
    raise KeyboardInterrupt


def _log(folder: Path) -> Log:
    return Log(folder / "log")


def _make_images(folder: Path) -> None:
    log = _log(folder)
    seen = Sightings(folder / "seen.jsonl", log)
    engine = find_engine(folder, log)
    with engine.running(with_networks=False):
        with seen.trying("engine and compose") as row:
            version = engine.docker("version", "--format", "{{.Server.Version}}").strip()
            row.note(f"Docker Engine {version}")
            compose = log.run([str(TOOLS / "docker-compose"), "version", "--short"]).strip()
            row.note(f"Compose {compose}")
        with seen.trying(f"base `{base_image()}`") as row:
            prepare_base(engine, row)
        for image in foreign_images():
            with seen.trying(f"image `{image}`") as row:
                prepare_foreign(engine, image, row)
        for image in own_images():
            with seen.trying(f"image `{image}` built") as row:
                build_own(engine, image, row)


def _try_stack(folder: Path) -> None:
    for words in (["link", "set", "lo", "up"], ["addr", "add", f"{_BESIDE}/32", "dev", "lo"]):
        subprocess.run(["ip", *words], check=True)
    log = _log(folder)
    engine = find_engine(folder, log)
    with engine.running(with_networks=True), receiving(_BESIDE) as receiver:
        stack = ComposedStack(engine, folder / "containers")
        stack.make_files({"NOTIFY": BLOCK})
        try_all(stack, Sightings(folder / "seen.jsonl", log), receiver)


if __name__ == "__main__":
    sys.exit(main())
