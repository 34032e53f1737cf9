"""python -m tests.infra.engine.payloads: what a payload can do in each kind of process here.

A release's own processes are started, with a payload planted in each (as an extension of the
recipe, which runs where a hole in torch or in Inductor would let a delivery's text run). `--write
FILE` puts the table between the marks in a Markdown file.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import native_cpu_target
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.optimize.extensions import digest_extension
from handoff.tasks.release.processes import Processes
from handoff.tasks.verify.messages import ReferenceJob
from tests.marked import write_between_marks
from tests.tasks.deliveries import write_delivery

# What has to be possible, beside which the rest has to be refused.
NEEDED = ("read its delivery", "write to its workspace", "run a compiler")
REFUSED = (
    "read the signing key", "read another delivery", "read another build",
    "read a file of the home folder", "read another model's cache", "write outside",
    "write to its delivery", "poison another model's cache", "poison the precompiled headers",
    "poison the C++ runner", "plant a link in its workspace", "move a link there",
    "run a program of its own making",
    "change the mode of the key", "open a TCP socket", "reach a server's own socket",
    "read the flow's environment", "read the flow's memory", "send the flow a signal",
    "trace the flow", "leave its group", "have a way to the network",
)  # fmt: skip

_ATTEMPTS = """
import json, os, socket, subprocess, sys
place = PLACES
def attempt(act):
    try:
        act()
    except (OSError, AssertionError, subprocess.CalledProcessError):
        return False
    return True
def read(path):
    return lambda: open(path, "rb").read(1)
def write(path):
    return lambda: open(path, "w").close()
def run_own():
    path = place["workspace"] + "/own-program"
    with open(path, "w") as stream:
        stream.write("#!/bin/sh\\nexit 0\\n")
    os.chmod(path, 0o755)
    subprocess.run([path], check=True)
def move_link():
    # Its own scratch folder is the one place where it makes links.
    made = os.environ["TMPDIR"] + f"/link-{os.getpid()}"
    os.symlink(place["key"], made)
    os.rename(made, place["workspace"] + "/moved")
def reach():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place["server"])
def trace():
    import ctypes
    assert ctypes.CDLL(None, use_errno=True).ptrace(16, place["flow"], 0, 0) == 0
def leave():
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
        finally:
            os._exit(0 if os.getpgid(0) == os.getpid() else 1)
    assert os.waitpid(pid, 0)[1] == 0
def change_mode():
    os.chmod(place["key"], 0o644)
    assert os.stat(place["key"]).st_mode & 0o777 == 0o644
def have_network():
    names = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
    assert set(names) - {"lo"}
parent = f"/proc/{place['flow']}/"
results = {
    "read its delivery": attempt(read(place["delivery"] + "/module.py")),
    "write to its workspace": attempt(write(place["workspace"] + "/written")),
    "run a compiler": attempt(lambda: subprocess.run(["g++", "--version"], check=True,
                                                     stdout=subprocess.DEVNULL)),
    "read the signing key": attempt(read(place["key"])),
    "read another delivery": attempt(read(place["other"] + "/module.py")),
    "read another build": attempt(read(place["build"] + "/reference.pt")),
    "read a file of the home folder": attempt(read(place["home"] + "/token")),
    "read another model's cache": attempt(read(place["packages"] + "/other/model.so")),
    "write outside": attempt(write(place["home"] + "/written")),
    "write to its delivery": attempt(write(place["delivery"] + "/module.py")),
    "poison another model's cache": attempt(write(place["packages"] + "/other/model.so")),
    "poison the precompiled headers": attempt(write(place["shared"] + "/headers/planted.h.gch")),
    "poison the C++ runner": attempt(write(place["programs"] + "/handoff-runner-planted")),
    "plant a link in its workspace": attempt(
        lambda: os.symlink(place["key"], place["workspace"] + "/link")),
    "move a link there": attempt(move_link),
    "run a program of its own making": attempt(run_own),
    "change the mode of the key": attempt(change_mode),
    "open a TCP socket": attempt(lambda: socket.socket().close()),
    "reach a server's own socket": attempt(reach),
    "read the flow's environment": attempt(read(parent + "environ")),
    "read the flow's memory": attempt(lambda: os.close(os.open(parent + "mem", os.O_RDONLY))),
    "send the flow a signal": attempt(lambda: os.kill(place["flow"], 0)),
    "trace the flow": attempt(trace),
    "leave its group": attempt(leave),
    "have a way to the network": attempt(have_network),
}
print("MARK" + json.dumps(results), flush=True)
"""

_EXTENSION = """
import torch
_library = torch.library.Library("planted_payload", "DEF")
_library.define("nothing(Tensor x) -> Tensor")
exec(compile(TEXT, "payload", "exec"), {})
# The C++ runner is started like this, by the process that runs packages.
import json
import sys
from pathlib import Path
from handoff.artifacts.release.mechanics import RunnerLimits
from handoff.tasks.probe.runner_process import run_limited
ended = run_limited(Path(sys.executable), ["-I", "-c", TEXT.replace("MARK", "")], RunnerLimits())
print("CHILD" + json.dumps(ended.lines[0] if ended.lines else ended.message), flush=True)
"""


@dataclass(frozen=True)
class Places:
    """Where things lie that a payload is after, on a machine like any other."""

    folder: Path

    @property
    def workspace(self) -> Path:
        """The build's own folder."""
        return self.folder / "home" / "builds" / "one"

    def paths(self) -> dict[str, str]:
        """Return the paths by the names that the payload knows them by."""
        home, builds = self.folder / "home", self.workspace.parent
        return {name: str(path) for name, path in {
            "delivery": self.folder / "delivery", "other": self.folder / "other",
            "workspace": self.workspace, "build": builds / "two", "home": home,
            "key": home / "keys" / "private" / "signing.pem", "packages": builds / "packages",
            "shared": builds / "compiler", "programs": builds / "programs",
            "server": self.folder / "server",
        }.items()}  # fmt: skip

    def furnish(self) -> None:
        """Put there what a payload is after."""
        paths = self.paths()
        for name in ("delivery", "other"):
            write_delivery(Path(paths[name]), nn.Linear(4, 2), {"input": torch.randn(6, 4)})
        for path in (
            paths["key"], f"{paths['build']}/reference.pt", f"{paths['home']}/token",
            f"{paths['packages']}/other/model.so", f"{paths['shared']}/headers/own.h",
            f"{paths['programs']}/handoff-runner",
        ):  # fmt: skip
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text("what a payload is after")
        Path(paths["key"]).chmod(0o600)


def attempts(folder: Path) -> dict[str, dict[str, bool]]:
    """Return what a payload could do, by the kind of process; work in the empty `folder`."""
    places = Places(folder)
    places.furnish()
    paths = places.paths()
    payload = _ATTEMPTS.replace("PLACES", repr({**paths, "flow": os.getpid()}))
    code = folder / "extensions"
    code.mkdir()
    (code / "planted_payload.py").write_text(_EXTENSION.replace("TEXT", repr(payload)))
    with _found_in(code), _server(paths["server"]):
        recipe = Recipe(extensions=(f"planted_payload@{digest_extension('planted_payload')}",))
        with Processes(places.workspace, recipe, delivery=Path(paths["delivery"])) as processes:
            jobs, target = processes.jobs, native_cpu_target()
            processes.graph.run(IntakeJob(Path(paths["delivery"]), jobs.staging), limit_s=300)
            optimized = processes.optimizer().run(jobs.optimize(), limit_s=300)
            compiling = processes.compiler(target)
            compiling.run(jobs.compile(optimized, target), limit_s=900)
            referring = ReferenceJob(
                jobs.staging, optimized.reference, recipe.verify, jobs.reference_file
            )
            processes.runner().run(referring, limit_s=300)
            logs = {
                "holds the graph": processes.graph.log, "runs passes": processes.optimizer().log,
                "compiles": compiling.log, "runs what was compiled": processes.runner().log,
            }  # fmt: skip
            found = {kind: _marked(log, "MARK") for kind, log in logs.items()}
            return found | {"the C++ runner": _marked(processes.runner().log, "CHILD")}


def _marked(log: Path, mark: str) -> dict[str, bool]:
    lines = [line for line in log.read_text().splitlines() if line.startswith(mark)]
    found: dict[str, bool] = json.loads(lines[0][len(mark) :])
    return found


@contextmanager
def _found_in(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


@contextmanager
def _server(path: str) -> Iterator[None]:
    """Listen like a machine's own service."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        yield


def table(found: dict[str, dict[str, bool]]) -> str:
    """Return the table of what a payload could do, in Markdown."""
    kinds = list(found)
    lines = ["| a payload tries to | " + " | ".join(kinds) + " |", "|---|" + "---|" * len(kinds)]
    for attempt in (*NEEDED, *REFUSED):
        cells = ("does it" if found[kind][attempt] else "can't" for kind in kinds)
        lines.append(f"| {attempt} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Try, and print or write the table; end with 1 where something was possible."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    # A home that isn't below the folder for temporary files, as a user's isn't.
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="handoff-payloads-") as folder:
        os.environ["HANDOFF_HOME"] = str(Path(folder, "home"))
        found = attempts(Path(folder))
    text = table(found)
    print(text)
    if options.write:
        write_between_marks(options.write, "payloads", text)
    possible = any(found[kind][attempt] for kind in found for attempt in REFUSED)
    sys.exit(1 if possible else 0)


if __name__ == "__main__":
    main()
