"""Whole releases by the command line, killed from outside; a second one then ends well."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from handoff.artifacts.host import Stores
from handoff.artifacts.release.releases import open_releases
from tests.studies.outages.children import run_in_child
from tests.studies.outages.inspecting import kept_versions, see_half, see_unsettled
from tests.studies.outages.litter import see_litter, see_processes
from tests.studies.outages.outcomes import Ending, Outcome

NAME = "small"
_FACTORY = """
import torch
from torch import nn

def build(seed):
    torch.manual_seed(seed)
    # Of another graph each: what is known of the code isn't measured again.
    return nn.Sequential(nn.Linear(4, 4 + seed), nn.ReLU()).eval(), (torch.randn(8, 4),)

def first():
    return build(0)

def second():
    return build(1)
"""
# The lines that a release prints as its steps end; what comes next begins then.
LINES = (
    "take in", "open key", "inspect", "look up", "optimize", "reference", "compile", "verify",
    "probe", "benchmark", "upload", "sign", "catalogue",
)  # fmt: skip
# A module that each step process imports before its first job, by which it is known.
PROCESSES = {
    "graph": "intake", "compiler": "compile.step",
    "runner": "verify.reference",
    "registrar": "registry.upload", "signer": "registry.sign",
}  # fmt: skip
_ORPHANS_END_S = 15.0


@dataclass(frozen=True)
class Workshop:
    """A home below `root`, in which version 1 was released, and the delivery of version 2."""

    root: Path

    @property
    def home(self) -> Path:
        """Where Handoff keeps its state."""
        return self.root / "home"

    @property
    def scratch(self) -> Path:
        """The temporary folder of everything that is started, empty at the start."""
        return self.root / "scratch"

    @property
    def stores(self) -> Stores:
        """What the settings come to in this home."""
        mlflow = self.home / "mlflow"
        return Stores(
            str(self.home / "store"), f"sqlite:///{mlflow / 'mlflow.db'}",
            str(mlflow / "artifacts"), (str(self.home / "keys" / "trusted"),),
            self.home / "ledgers" / "seen.json",
        )  # fmt: skip

    def start(self, *arguments: str, home: Path | None = None) -> subprocess.Popen[str]:
        """Start `handoff` in a session of its own."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HANDOFF_", "AWS_"))}
        source = str(Path(__file__).parents[3])
        return subprocess.Popen(
            [sys.executable, "-m", "handoff", *arguments],
            env={
                **kept, "PYTHONPATH": source, "HANDOFF_HOME": str(home or self.home),
                "TMPDIR": str(self.scratch),
            },
            cwd=self.root, start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run `handoff` to its end; return its exit code and its output."""
        process = self.start(*arguments)
        _, output = process.communicate(timeout=600)
        return process.returncode, output

    def restore(self) -> None:
        """Bring the home back to where version 1 alone is released."""
        for folder in (self.home, self.scratch):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.root / "kept", self.home, symlinks=True)
        self.scratch.mkdir()


def open_workshop(root: Path) -> Workshop:
    """Return a workshop below `root`; its first release takes a minute, what follows seconds."""
    workshop = Workshop(root)
    workshop.scratch.mkdir(parents=True)
    (root / "small.py").write_text(_FACTORY)
    for which in ("first", "second"):
        command = ("deliver", f"small:{which}", "--to", str(root / which), "--name", NAME)
        code, output = workshop.run(*command)
        assert code == 0, output
    code, output = workshop.run("release", str(root / "first"))
    assert code == 0, output
    code, output = workshop.run("promote", f"{NAME}@1", "--to", "production")
    assert code == 0, output
    shutil.copytree(workshop.home, root / "kept", symlinks=True)
    return workshop


@dataclass(frozen=True)
class Kill:
    """When and what: after the line that begins with `line`, or `after_s` seconds; then `delay_s`.

    `target` is `group`, `main`, or one of `PROCESSES`.
    """

    target: str
    line: str = ""
    after_s: float = 0.0
    delay_s: float = 0.0


def planned_kills(seed: int, lasts_s: float) -> list[Kill]:
    """Return the kills of the table, in no order."""
    chance = random.Random(seed)
    kills = list(_kills(chance, lasts_s))
    chance.shuffle(kills)
    return kills


def _kills(chance: random.Random, lasts_s: float) -> Iterator[Kill]:
    for line in LINES:
        yield Kill("group", line, delay_s=chance.uniform(0, 0.3))
    for line in ("optimize", "probe", "benchmark", "upload", "sign"):
        yield Kill("main", line, delay_s=chance.uniform(0, 0.3))
    for target, line in (
        ("compiler", "inspect"), ("runner", "compile"), ("signer", "upload"),
        ("registrar", "benchmark"), ("registrar", "upload"), ("registrar", "sign"),
    ):  # fmt: skip
        yield Kill(target, line, delay_s=chance.uniform(0, 0.05))
    for _ in range(6):
        yield Kill("group", after_s=chance.uniform(0, lasts_s))


def kill_release(workshop: Workshop, kill: Kill) -> Outcome:
    """Release version 2 and kill it, look, release it again, and look once more."""
    workshop.restore()
    code, output = _run_and_kill(workshop, kill)
    litter = wait_for_orphans(workshop)
    half = run_in_child(lambda: see_half(workshop.stores, NAME)).value
    again, output_again = workshop.run("release", str(workshop.root / "second"))
    lost = [] if again == 0 else [f"the second run ended with {again}: {output_again[-500:]}"]
    litter += wait_for_orphans(workshop)
    found: tuple[list[str], list[str], list[str]] = run_in_child(lambda: _look(workshop)).value
    ended: Ending = "killed" if code < 0 else "refused" if code else "well"
    where = {"group": "all of a release", "main": "its main process"}.get(
        kill.target, "one step's process"
    )
    if code > 0 and ("Traceback" in output or "handoff: " not in output):
        lost.append(f"the refusal is no sentence: {output[-500:]}")
    return Outcome(
        "SIGKILL", f"{where}, {'at a step' if kill.line else 'at any moment'}", ended,
        message=f"{kill}: {output.strip().splitlines()[-1] if output.strip() else ''}"[:400],
        half=(*half, *found[0]), lost=(*lost, *found[1]),
        litter=(*litter, *found[2]),
    )  # fmt: skip


def _look(workshop: Workshop) -> tuple[list[str], list[str], list[str]]:
    stores = workshop.stores
    releases = open_releases(stores.objects, stores.trusted, None)
    entries = releases.entries(NAME)
    lost = see_unsettled(stores, NAME)
    kept = sorted(kept_versions(entries))
    aliases = {alias: pointer.version for alias, pointer in entries[-1].aliases.items()}
    if (kept, aliases) != ([1, 2], {"candidate": 2, "production": 1}):
        lost.append(f"the ledger has the versions {kept} and the aliases {aliases}")
    litter = see_litter(stores, home=workshop.home, scratch=[workshop.scratch])
    return see_half(stores, NAME), lost, litter


def _run_and_kill(workshop: Workshop, kill: Kill) -> tuple[int, str]:
    process = workshop.start("release", str(workshop.root / "second"))
    output: list[str] = []
    seen = threading.Event()
    assert process.stderr is not None

    def read(lines: Iterable[str]) -> None:
        for line in lines:
            output.append(line)
            if kill.line and line.startswith(kill.line):
                seen.set()
        seen.set()

    reader = threading.Thread(target=read, args=(process.stderr,), daemon=True)
    reader.start()
    if kill.line:
        seen.wait(300)
    else:
        time.sleep(kill.after_s)
    time.sleep(kill.delay_s)
    _kill(process, kill.target)
    process.wait(300)
    reader.join(30)
    if process.stdout is not None:
        process.stdout.close()
    return process.returncode, "".join(output)


def _kill(process: subprocess.Popen[str], target: str) -> None:
    try:
        if target == "group":
            os.killpg(process.pid, signal.SIGKILL)
        elif target == "main":
            process.send_signal(signal.SIGKILL)
        else:
            for child in psutil.Process(process.pid).children(recursive=True):
                if PROCESSES[target] in child.cmdline():
                    child.kill()
    except (ProcessLookupError, psutil.Error):
        return  # it ended before


def wait_for_orphans(workshop: Workshop) -> list[str]:
    """Return the processes that are left once those that end by themselves had time to."""
    deadline = time.monotonic() + _ORPHANS_END_S
    while (left := see_processes(workshop.root)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left
