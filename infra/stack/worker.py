"""`handoff worker`: Prefect's worker for one pool, once this machine has proved what it needs.

One that lacks something says all of it, and takes no job (`infra.stack.preflight`). What it becomes
then proves it again while it works (`infra.stack.preflight_worker`). With `--one-run` it is what a
pod starts that Prefect's Kubernetes worker made for one run: it proves the same, and becomes the
run.
"""

from __future__ import annotations

import os
import platform
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from uuid import UUID

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.isolation import ISOLATION_VARIABLES
from handoff.artifacts.printable import one_line
from handoff.flows.names import CONTROL_POOL
from handoff.infra.engine.environments import (
    absolute_python_path,
    prepare_prefect,
    replace_process,
    worker_environment,
)
from handoff.infra.engine.import_paths import empty_folder
from handoff.infra.prefect.absences import Absence, clear_absence, report_absence
from handoff.infra.prefect.pools import core_sets_variable, require_process_pool, split_cores
from handoff.infra.prefect.prefect_api import connected_client
from handoff.infra.servers import prefect_status
from handoff.infra.settings import (
    Settings,
    prefect_login,
    read_settings,
    require_writable_home,
)
from handoff.infra.stack.joining import join
from handoff.infra.stack.preflight import REGISTERING, run_checks
from handoff.infra.stack.start import reset_signals
from handoff.infra.terminal.output import echo

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


@dataclass(frozen=True)
class JoinOptions:
    """The address of a stack's Prefect server to join it by, and the ids of keys to trust."""

    url: str
    trusted: tuple[str, ...] = ()


_NO_JOINING = JoinOptions("")
# By which Prefect tells a process, or a pod, which run it is for.
_RUN = "PREFECT__FLOW_RUN_ID"
# What fails its checks in one pod would in the next: they are reported by one name.
_PODS = "pods"


def run_worker(
    pool: str, limit: int | None, cores: str, name: str, joining: JoinOptions = _NO_JOINING
) -> None:
    """Replace this process by Prefect's worker; it ends with Ctrl-C or SIGTERM.

    `limit` is how many flow runs it has at once: None for one in a pool that builds, and any number
    of those that only wait. `cores`, such as `0-3,8`, are those that it and its flow runs may use.
    Several builds at once share them out, and `UsageProblem` is raised for more than cores. Raises
    `EnvironmentLacking` where this machine can't do the pool's jobs, which is reported there, too.
    """
    if joining.trusted and not joining.url:
        raise UsageProblem(
            "--trust is for --join", expected="both", got="--trust alone",
            remedy="Add --join, or set HANDOFF_TRUSTED_KEYS",
        )  # fmt: skip
    if joining.url:
        _join(joining, pool)
    settings = read_settings()
    require_server(settings.prefect_api, prefect_login())
    require_writable_home(settings)
    if cores:
        os.sched_setaffinity(0, read_cores(cores))
    if limit is None and pool != CONTROL_POOL:
        limit = 1
    core_sets = _core_sets_variable(pool, limit or 1)
    # Where it stays behind, others are to read of it by the machine's name.
    name = name or platform.node()
    _run_preflight(settings, pool, name)
    with _open_client(settings, "for a pool") as client:
        require_process_pool(client, pool)
    threads = len(os.sched_getaffinity(0)) if cores and not core_sets else None
    # Started from a shell with &, it would ignore the first SIGTERM, too.
    reset_signals()
    command = [
        sys.executable, "-P", "-m", "handoff.infra.stack.preflight_worker", "--pool", pool,
        "--name", name, *(["--limit", str(limit)] if limit else []),
    ]  # fmt: skip
    _exec(command, settings, worker_environment(settings, threads) | core_sets)


def carry_out_one_run(pool: str) -> NoReturn:
    """Replace this process by one for the flow run that Prefect's variable names, in its own pod.

    One that has ended by now is left alone: a pod may begin long after it was asked for. Raises
    `EnvironmentLacking` where this machine can't do the pool's jobs: the run, which has not begun,
    crashes then, and is started again elsewhere.
    """
    run = _read_run_id()
    settings = read_settings()
    require_server(settings.prefect_api, prefect_login())
    require_writable_home(settings)
    if _has_ended(settings, run):
        echo(f"the flow run {run} has ended, and nothing is left to do for it", err=True)
        sys.exit(0)
    _run_preflight(settings, pool, _PODS)
    clear_absence(settings, pool, _PODS)
    command = [sys.executable, "-P", "-m", "handoff.infra.stack.one_run", "--pool", pool]
    _exec([*command, "--run", str(run)], settings, worker_environment(settings, None))


def _exec(command: list[str], settings: Settings, environment: dict[str, str]) -> NoReturn:
    """Replace this process by the command, in the environment of a worker's own."""
    # Prefect reads settings from the folder that it stands in.
    os.chdir(empty_folder(settings.home))
    replace_process(
        command,
        {
            **environment, **absolute_python_path(), **ISOLATION_VARIABLES,
            "TMPDIR": str(own_temporary_folder()),
        },
    )  # fmt: skip


def _join(joining: JoinOptions, pool: str) -> None:
    """Take over the stack's settings; Prefect is imported for it, and reads its own then."""
    prepare_prefect(replace(read_settings(), prefect_api=joining.url), retries=1)
    join(joining.url, joining.trusted, registers=pool in REGISTERING)


def _read_run_id() -> UUID:
    text = os.environ.get(_RUN, "")
    try:
        return UUID(text)
    except ValueError as error:
        raise UsageProblem(
            "--one-run is for a pod that Prefect's Kubernetes worker starts",
            expected=f"a flow run's id in {_RUN}", got=one_line(text)[:60] or "none",
            remedy="Leave --one-run out, for a worker that asks its pool for runs",
        ) from error  # fmt: skip


def _has_ended(settings: Settings, run: UUID) -> bool:
    """Return whether a run has ended, or was removed since."""
    from prefect.exceptions import ObjectNotFound

    try:
        with _open_client(settings, "for a flow run") as client:
            state = client.read_flow_run(run).state
    except ObjectNotFound:
        return True
    return state is not None and state.is_final()


@contextmanager
def _open_client(settings: Settings, what: str) -> Iterator[SyncPrefectClient]:
    """Give a client of the server, in a process whose Prefect knows the settings."""
    prepare_prefect(settings, retries=1)
    with connected_client(
        settings.prefect_api, prefect_login(), what, "a question that it knows",
        "Then start the worker again",
    ) as client:  # fmt: skip
        yield client


def _run_preflight(settings: Settings, pool: str, name: str) -> None:
    """Print what was proved; raise what lacks, and report it to the Prefect server."""
    try:
        results = run_checks(settings, pool)
    except EnvironmentLacking as error:
        prepare_prefect(settings, retries=1)
        report_absence(settings, Absence.of(pool, name, error))
        raise
    for line in results:
        echo(line, err=True)


def _core_sets_variable(pool: str, limit: int) -> dict[str, str]:
    """Return the variable that tells flow runs which cores to choose from; none for one at once."""
    if limit == 1 or pool == CONTROL_POOL:
        return {}
    cores = os.sched_getaffinity(0)
    if limit > len(cores):
        raise UsageProblem(
            "More flow runs at once than cores", expected=f"a --limit of {len(cores)} at most",
            got=str(limit), remedy="Each builds on cores of its own: let the worker have fewer",
        )  # fmt: skip
    return core_sets_variable(pool, split_cores(cores, limit))


def own_temporary_folder() -> Path:
    """Make a folder for this user's temporary files, and return it.

    Prefect 3.8 puts a worker's files into `runner_storage` in the common one, which belongs to the
    first user who had a worker on the machine: another one's doesn't start.
    """
    folder = Path(tempfile.gettempdir()) / f"handoff-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise EnvironmentLacking(
            f"{folder} is somebody else's", expected="a folder that only this user can write to",
            got=stat.filemode(status.st_mode), remedy="Set TMPDIR to a folder of your own",
        )  # fmt: skip
    return folder


def require_server(api: str, login: str) -> None:
    """Raise where no Prefect server is named, or the one that is doesn't answer or let us in."""
    if not api:
        raise UsageProblem(
            "A worker needs a Prefect server", expected="its address in PREFECT_API_URL",
            got="none", remedy="Run 'handoff up', and then: "
            'eval "$(handoff up --print-environment)"',
        )  # fmt: skip
    status = prefect_status(api, login)
    if status in (401, 403):
        raise UsageProblem(
            "The Prefect server doesn't let this worker in",
            expected="its login in PREFECT_API_AUTH_STRING, or Prefect Cloud's key in "
            "PREFECT_API_KEY", got=f"HTTP status {status}",
            remedy="Set it to the server's PREFECT_SERVER_API_AUTH_STRING, or to a key of yours",
        )  # fmt: skip
    if status != 200:
        raise EnvironmentLacking(
            f"No Prefect server answers at {api}", expected="an answer",
            got=f"HTTP status {status}" if status else "none",
            remedy="Start it ('handoff up'), or fix PREFECT_API_URL",
        )  # fmt: skip


def read_cores(text: str) -> set[int]:
    """Return the cores that a text such as `0-3,8` names; raise `UsageProblem` for others."""
    available = os.sched_getaffinity(0)
    chosen: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip())
        if match is None:
            raise UsageProblem(
                "--cores names no cores", expected="numbers and ranges, as in 0-3,8", got=text[:60],
                remedy="Write it like that",
            )  # fmt: skip
        first = int(match[1])
        chosen |= set(range(first, int(match[2] or first) + 1))
    if not chosen or not chosen <= available:
        raise UsageProblem(
            "--cores names cores that aren't to be had here",
            expected=f"some of {', '.join(map(str, sorted(available)))}", got=text[:60],
            remedy="Name fewer",
        )  # fmt: skip
    return chosen
