"""What befalls a served stack: which processes are ended, stopped or cut off, and how."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import psutil

from handoff.infra.stack import postgres
from tests.studies.outages.served.runs import ObservedRun, Runs
from tests.studies.outages.served.stack import ServedStack, wait

# Three heartbeats and a server that is behind.
_SILENCE_LIMIT_S = 420.0
_AGAIN_LIMIT_S = 300.0
_BOOT_LIMIT_S = 600.0


@dataclass(frozen=True)
class Scene:
    """A release and a night under way: the runs that are struck are `release`, `night`, `child`."""

    stack: ServedStack
    runs: Runs
    release: str
    night: str
    child: str

    def process(self, run: str) -> psutil.Process | None:
        """Return the process of a run; None where it has ended."""
        return self.stack.flow_processes().get(run)

    def seen(self, run: str) -> ObservedRun | None:
        """Return a run as the server knows it."""
        return next((one for one in self.runs.read() or [] if one.id == run), None)


@dataclass(frozen=True)
class Fault:
    """A fault; after one that `is_refused` runs may fail, and are asked for once more."""

    name: str
    strike: Callable[[Scene], None]
    is_refused: bool = False


def _kill_runs(scene: Scene) -> None:
    _signal([scene.process(scene.release), scene.process(scene.child)], signal.SIGKILL)


def _kill_workers(scene: Scene) -> None:
    _signal(map(_process, scene.stack.workers()), signal.SIGKILL)


def _kill_workers_and_runs(scene: Scene) -> None:
    runs = [scene.process(scene.release), scene.process(scene.child)]
    workers = [_process(worker) for worker in scene.stack.workers()]
    # Stopped first, so that no worker reports its run's end.
    _signal(workers, signal.SIGSTOP)
    _signal([*runs, *workers], signal.SIGKILL)


def _end_workers(scene: Scene) -> None:
    _signal(map(_process, scene.stack.workers()), signal.SIGTERM)


def _kill_control(scene: Scene) -> None:
    os.kill(scene.stack.services()["control"], signal.SIGKILL)


def _kill_night(scene: Scene) -> None:
    _signal([scene.process(scene.night)], signal.SIGKILL)


def _kill_steps(scene: Scene) -> None:
    steps = []
    for run in (scene.release, scene.child):
        process = scene.process(run)
        if process is not None:
            # Whichever step is under way is in one of these.
            steps += compilers_of(process)
    _signal(steps, signal.SIGKILL)


def _kill_prefect(scene: Scene) -> None:
    os.kill(scene.stack.services()["prefect"], signal.SIGKILL)


def _kill_mlflow(scene: Scene) -> None:
    os.kill(scene.stack.services()["mlflow"], signal.SIGKILL)


def _kill_postgres(scene: Scene) -> None:
    os.kill(postgres.main_process(scene.stack.place), signal.SIGKILL)


def _stop_postgres(scene: Scene) -> None:
    os.kill(postgres.main_process(scene.stack.place), signal.SIGQUIT)  # an immediate shutdown


def _cut_connections(scene: Scene) -> None:
    link = scene.stack.link()
    with link.cursor() as cursor:
        cursor.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname in ('prefect', 'mlflow') and pid <> pg_backend_pid()"
        )
    link.close()


def _lose_machine(scene: Scene) -> None:
    scene.stack.lose()
    scene.stack.up()


def _boot(scene: Scene) -> None:
    """Lose the machine; then do what its systemd unit does, which knows no shell's settings."""
    stack = scene.stack
    stack.run("up", "--install", "user", is_served=False)
    lines = stack.unit.read_text().splitlines()
    settings = [
        line.removeprefix("Environment=") for line in lines if line.startswith("Environment=")
    ]
    (command,) = (
        line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")
    )
    environment = dict(word.partition("=")[::2] for line in settings for word in shlex.split(line))
    stack.lose()
    subprocess.run(
        shlex.split(command), env=environment, check=True, cwd="/",
        capture_output=True, timeout=_BOOT_LIMIT_S,
    )  # fmt: skip


def _drain(scene: Scene) -> None:
    scene.stack.run("down", is_served=False)
    scene.stack.up()


def _down_now(scene: Scene) -> None:
    scene.stack.run("down", "--now", is_served=False)
    scene.stack.up()


def _freeze(scene: Scene) -> None:
    """Stop the release's process and the night's, until others have taken their places."""
    frozen = {run: scene.process(run) for run in (scene.release, scene.night)}
    _signal(frozen.values(), signal.SIGSTOP)
    try:
        wait("all are given up", partial(_all, _is_crashed, scene, frozen), _SILENCE_LIMIT_S)
        wait("all are repeated", partial(_all, _is_repeated, scene, frozen), _AGAIN_LIMIT_S)
    finally:
        _signal(frozen.values(), signal.SIGCONT)


def _all(is_so: Callable[[Scene, str], bool], scene: Scene, runs: Iterable[str]) -> bool:
    return all(is_so(scene, run) for run in runs)


def _is_crashed(scene: Scene, run: str) -> bool:
    seen = scene.seen(run)
    return seen is not None and seen.state == "Crashed"


def _is_repeated(scene: Scene, run: str) -> bool:
    known = scene.runs.read() or []
    ids = [one.id for one in known if one.key == f"resume:{run}"]
    return any(scene.process(one) is not None for one in ids)


def compilers_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the step processes of a flow run that compile."""
    found = []
    with suppress(psutil.Error):
        for child in process.children(recursive=True):
            with suppress(psutil.Error):
                # They are named by their plan, and forked: their command is their server's.
                if child.name().startswith("compile-"):
                    found.append(child)
    return found


def _process(number: int) -> psutil.Process | None:
    return psutil.Process(number) if psutil.pid_exists(number) else None


def _signal(processes: Iterable[psutil.Process | None], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):
            if process is not None:
                process.send_signal(number)


FAULTS = (
    Fault("SIGKILL of the flow runs' processes", _kill_runs),
    Fault("SIGKILL of the workers that build", _kill_workers),
    Fault("the machine is lost, and comes up again", _lose_machine),
    Fault("SIGKILL of PostgreSQL", _kill_postgres),
    Fault("SIGKILL of the Prefect server", _kill_prefect),
    Fault("SIGTERM of the workers that build", _end_workers),
    Fault("SIGKILL of the control worker", _kill_control),
    Fault("SIGSTOP of flow runs, SIGCONT once they are repeated", _freeze),
    Fault("SIGKILL of workers and flow runs", _kill_workers_and_runs),
    Fault("all connections to the databases are cut", _cut_connections),
    Fault("SIGKILL of the steps that compile", _kill_steps, is_refused=True),
    Fault("SIGKILL of the night's process", _kill_night),
    Fault("SIGKILL of MLflow", _kill_mlflow),
    Fault("an immediate shutdown of PostgreSQL", _stop_postgres),
    Fault("`down --now` in the middle, then `up`", _down_now),
    Fault("`down` in the middle, which lets builds end, then `up`", _drain),
    Fault("the machine is lost, and its systemd unit brings the stack up", _boot),
)
