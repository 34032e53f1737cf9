"""A stack that `handoff up` has started for the faults: its commands, processes and stores."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from handoff.artifacts.host import Stores
from handoff.infra.engine.environments import STACK_MARK
from handoff.infra.prefect.orphans import find_marked
from handoff.infra.stack import postgres
from handoff.infra.stack.layout import StackLayout
from handoff.infra.stack.supervision import Supervision
from tests.prefect_server import free_port

_COMMAND_LIMIT_S = 600
# Prefect's own name for the run that a process works on.
_RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
_FACTORY = """
import torch
from torch import nn

def _build(width):
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(width, 4), nn.ReLU()).eval(), (torch.randn(8, width),)

"""


def _plant() -> dict[str, str]:
    names = ("the password of Prefect", "the secret key of S3")
    return {name: f"planted-{secrets.token_hex(16)}" for name in names}


@dataclass(frozen=True)
class ServedStack:
    """A home below `root`, whose stack listens on ports of its own; `planted` are its secrets.

    `options` are for `handoff up`, beside those ports.
    """

    root: Path
    prefect_port: int
    mlflow_port: int
    options: tuple[str, ...] = ()
    planted: dict[str, str] = field(default_factory=_plant)

    @property
    def home(self) -> Path:
        """Where Handoff keeps its state."""
        return self.root / "home"

    @property
    def place(self) -> StackLayout:
        """The stack's files."""
        return StackLayout(self.home)

    @property
    def api(self) -> str:
        """The address of Prefect's API."""
        return f"http://127.0.0.1:{self.prefect_port}/api"

    @property
    def unit(self) -> Path:
        """Where `handoff up --install user` writes the systemd unit."""
        return self.root / "config" / "systemd" / "user" / "handoff.service"

    @property
    def login(self) -> str:
        """Prefect's `user:password`."""
        return f"operator:{self.planted['the password of Prefect']}"

    @property
    def stores(self) -> Stores:
        """What the workers' settings come to."""
        return Stores(
            str(self.home / "store"), f"http://127.0.0.1:{self.mlflow_port}",
            "", (str(self.home / "keys" / "trusted"),), None,
        )  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every command: that of this process, without any settings of ours."""
        prefixes = ("HANDOFF_", "PREFECT_", "MLFLOW_", "AWS_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
        return {
            **kept, "PYTHONPATH": str(Path(__file__).parents[4]), "HANDOFF_HOME": str(self.home),
            "AWS_ACCESS_KEY_ID": "known", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_SECRET_ACCESS_KEY": self.planted["the secret key of S3"],
            "XDG_CONFIG_HOME": str(self.root / "config"),
            "PREFECT_SERVER_API_AUTH_STRING": self.login,
        }  # fmt: skip

    @property
    def client_environment(self) -> dict[str, str]:
        """The same, with the settings that commands on a running stack need."""
        settings = {
            "PREFECT_API_URL": self.api, "PREFECT_API_AUTH_STRING": self.login,
            "MLFLOW_TRACKING_URI": self.stores.tracking_uri, "HANDOFF_STORE": self.stores.objects,
        }  # fmt: skip
        return {**self.environment, **settings}

    def run(self, *arguments: str, is_served: bool = True) -> str:
        """Run `handoff` and return what it printed; raise `RuntimeError` where it didn't do."""
        answer = subprocess.run(
            [sys.executable, "-m", "handoff", *arguments], cwd=self.root, text=True,
            env=self.client_environment if is_served else self.environment, check=False,
            capture_output=True, timeout=_COMMAND_LIMIT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if answer.returncode:
            raise RuntimeError(f"handoff {' '.join(arguments)}: {answer.stdout} {answer.stderr}")
        return answer.stdout

    def up(self) -> None:
        """Run `handoff up`."""
        ports = ("--prefect-port", str(self.prefect_port), "--mlflow-port", str(self.mlflow_port))
        self.run("up", *ports, *self.options, is_served=False)

    def deliver(self, widths: dict[str, int]) -> None:
        """Deliver a linear layer of each of these widths, each a graph of its own."""
        factories = (f"def {n}():\n    return _build({w})\n" for n, w in widths.items())
        (self.root / "factory.py").write_text(_FACTORY + "\n".join(factories))
        for name in widths:
            self.run("deliver", f"factory:{name}", "--to", str(self.delivery(name)), "--name", name)

    def deliver_again(self, name: str, other: str, folder: str = "") -> None:
        """Deliver what `name` is as the model `other`, into a folder of that name or another."""
        shutil.copytree(self.delivery(name), self.delivery(folder or other))
        contract = self.delivery(folder or other) / "delivery.toml"
        text = contract.read_text()
        contract.write_text(text.replace(f'name = "{name}"', f'name = "{other}"', 1))

    def loosen(self, model: str, thousandths: int) -> None:
        """Give a model another recipe, for which the next night rebuilds it."""
        folder = self.home / "recipes"
        folder.mkdir(exist_ok=True)
        factor = f"rmse_factor = {2 + thousandths / 1000}\n"
        (folder / f"{model}.toml").write_text(f"[tolerance.float32]\n{factor}")

    def delivery(self, name: str) -> Path:
        """Return where the delivery of that name lies."""
        return self.root / "deliveries" / name

    def services(self) -> dict[str, int]:
        """Return the process of each service that has one, by the supervisor's word."""
        return {s.name: s.process for s in Supervision(self.place).states() if s.process}

    def workers(self) -> list[int]:
        """Return the process of the worker that builds; nothing where it doesn't live."""
        return [process for name, process in self.services().items() if name == "build"]

    def flow_processes(self) -> dict[str, psutil.Process]:
        """Return the flow runs' processes, by the runs' ids."""
        return flow_runs_among(self.tree())

    def tree(self) -> list[psutil.Process]:
        """Return the supervisor and all that comes of it; nothing where it doesn't live."""
        try:
            supervisor = psutil.Process(int(self.place.process_file.read_text()))
            return [supervisor, *supervisor.children(recursive=True)]
        except (OSError, ValueError, psutil.NoSuchProcess):
            return []

    def lose(self) -> None:
        """End everything at once, as a machine does that is switched off."""
        tree = self.tree()
        tree[0].suspend()
        others = [*find_marked(STACK_MARK, str(self.home)), postgres.main_process(self.place)]
        everything = {*(one.pid for one in [*tree, *self.tree()]), *others} - {0}
        for process in everything:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def compiled(self) -> dict[str, int]:
        """Return what the cache of packages holds, by key, with when it was compiled, in ns."""
        found = {}
        packages = self.home / "builds" / "packages"
        # A folder for each graph, and in it one for each way in which it is compiled.
        for package in packages.glob("[0-9a-f]*/[0-9a-f]*/model.pt2"):
            with suppress(FileNotFoundError):
                key = str(package.parent.relative_to(packages))
                found[key] = package.stat().st_mtime_ns
        return found

    def forget_compiled(self) -> None:
        """Have everything compiled anew."""
        shutil.rmtree(self.home / "builds" / "packages", ignore_errors=True)

    def link(self, database: str = "prefect") -> Any:
        """Return a connection to a server's database, as its owner."""
        import psycopg2

        link = psycopg2.connect(
            host=str(self.place.database / "socket"), user="handoff", dbname=database,
            passfile=str(self.place.folder / "postgres.password"),
        )  # fmt: skip
        link.autocommit = True
        return link


@contextmanager
def open_stack(root: Path, *options: str) -> Iterator[ServedStack]:
    """Bring a stack up below `root`, deploy to it, and stop it and remove its database."""
    root.mkdir(parents=True, exist_ok=True)
    stack = ServedStack(root, free_port(), free_port(), options)
    try:
        stack.up()
        # A night by hand is enough.
        stack.run("deploy", "--cron", "0 2 1 1 *")
        yield stack
    finally:
        stack.run("down", "--now", is_served=False)
        shutil.rmtree(stack.place.database, ignore_errors=True)


def flow_runs_among(processes: Iterable[psutil.Process]) -> dict[str, psutil.Process]:
    """Return those of the processes that work on flow runs, by the runs' ids."""
    found = {}
    for process in processes:
        with suppress(psutil.Error):
            run = process.environ().get(_RUN_VARIABLE, "")
            if run and "handoff.infra.prefect.flow_run" in process.cmdline():
                found[run] = process
    return found


@contextmanager
def suspended(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Let these processes stand still meanwhile."""
    for one in processes:
        one.suspend()
    try:
        yield
    finally:
        for one in processes:
            with suppress(psutil.NoSuchProcess):
                one.resume()


def wait(what: str, is_so: Any, limit_s: float, pause_s: float = 0.5) -> None:
    """Wait until `is_so()`; raise `TimeoutError` after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {limit_s:.0f} s: {what}")
        time.sleep(pause_s)
