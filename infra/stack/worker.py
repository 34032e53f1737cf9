"""`handoff worker`: Prefect's worker for one pool, once this machine has proved what it needs.

A job that fails for want of a setting fails again with the next one, and each of them is a model's
release. So a worker that lacks something says all of it, and takes no job.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from handoff.artifacts.errors import EnvironmentLacking, HandoffError, UsageProblem
from handoff.artifacts.isolated import FOR_CHILDREN
from handoff.artifacts.printable import one_line
from handoff.artifacts.release.releases import open_releases
from handoff.artifacts.stores.store import open_store
from handoff.flows.site import BUILD_POOL, CONTROL_POOL
from handoff.infra.engine.child import StepProcess
from handoff.infra.engine.environments import (
    absolute_python_path,
    replace_process,
    worker_environment,
)
from handoff.infra.engine.looking import empty_folder
from handoff.infra.extras import installed
from handoff.infra.prefect.pools import as_variable, share_out
from handoff.infra.servers import clock_ahead_s, get_status
from handoff.infra.settings import (
    Settings,
    compiler_name,
    prefect_login,
    read_settings,
    require_writable_home,
)
from handoff.infra.stack.start import reset_signals
from handoff.infra.terminal.echoing import echo
from handoff.tasks.registry.messages import KeyJob
from handoff.tasks.registry.moving import SIGNER

# S3 refuses what is a quarter of an hour off; leases and heartbeats of Prefect's are in minutes.
_CLOCK_S = 60.0
_PATIENCE_S = 20.0
_LIMIT_S = 120.0
# Ledgers are signed by few keys: the first of many stand for them.
_LEDGERS = 3
_PROGRAM = "#include <vector>\nint main() { return int(std::vector<int>{}.size()); }\n"


def prove(settings: Settings, pool: str) -> tuple[str, ...]:
    """Return what was proved, in words; raise `EnvironmentLacking` with all that lacks.

    Every worker has to write to the store and read it, and to have the time. One that builds needs
    torch and a compiler, and one for `handoff-build` the key that signs. Those for the pool of a
    target sign nothing, and are asked for no key.
    """
    checks: list[tuple[str, Callable[[Settings], str]]] = [("store", _store), ("clock", _clock)]
    if pool in (BUILD_POOL, CONTROL_POOL):
        checks.append(("trust", _trust))
    if pool == BUILD_POOL:
        checks.append(("key", _key))
    if pool != CONTROL_POOL:
        checks += [("torch", _torch), ("compiler", _compiler)]
    proved, lacking = [], []
    for name, check in checks:
        try:
            proved.append(f"{name}: {check(settings)}")
        except HandoffError as error:
            lacking.append((name, error))
    if lacking:
        raise EnvironmentLacking(
            f"this machine can't work for {pool}, and takes no job",
            expected="; ".join(f"{name}: {error.expected}" for name, error in lacking),
            got="; ".join(f"{name}: {error.what}: {error.got}" for name, error in lacking),
            remedy=". ".join(error.remedy for _, error in lacking),
        )
    return tuple(proved)


def _store(settings: Settings) -> str:
    """Write to the store, read it back, and remove that again."""
    location = settings.stores.objects
    guarantees = open_store(location, patience_s=_PATIENCE_S).check()
    told = f"{location}, written to and read"
    return f"{told} ({'. '.join(guarantees.lacking)})" if guarantees.lacking else told


def _trust(settings: Settings) -> str:
    """Verify the newest entries of some ledgers, as every job of theirs would."""
    stores = settings.stores
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    models = releases.models()
    for model in models[:_LEDGERS]:
        releases.head(model)
    return "nothing is released yet" if not models else f"{models[0]}'s ledger is verified"


def _key(settings: Settings) -> str:
    """Open the key that signs, which has to be trusted; one that a first release makes will be."""
    key, trusted = settings.signing_key, settings.stores.trusted
    if key.make_missing and not key.public.exists():
        if any(Path(place) in (key.public, key.public.parent) for place in trusted):
            return "made by the first release"
        raise EnvironmentLacking(
            "no key signs here", expected="one whose public key is trusted (HANDOFF_TRUSTED_KEYS)",
            got="none; one that is made here would not be trusted",
            remedy="Set HANDOFF_SIGNING_KEY as the stack's other workers have it: a file, or a KMS",
        )  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="handoff-log-") as logs,
        closing(StepProcess(SIGNER, Path(logs) / "sign.log")) as signer,
    ):
        opened = signer.run(KeyJob(replace(key, make_missing=False), trusted))
    return f"signs with {opened.key_id[:12]}, which is trusted"


def _clock(settings: Settings) -> str:
    ahead_s = clock_ahead_s(f"{settings.prefect_api.rstrip('/')}/health", prefect_login())
    if ahead_s is None:
        return "the server doesn't say its time"
    if abs(ahead_s) > _CLOCK_S:
        raise EnvironmentLacking(
            "this machine's clock is wrong, or the Prefect server's",
            expected=f"at most {_CLOCK_S:.0f} s between them", got=f"{ahead_s:+.0f} s",
            remedy="Let both keep the time by NTP",
        )  # fmt: skip
    return "as the Prefect server's"


def _torch(_: Settings) -> str:
    """Import torch as a step does: one that is installed may still lack a library."""
    command = [sys.executable, "-I", "-c", "import torch"]
    _run(command, "torch can't be imported", "a torch that a step can import")
    return f"{installed('torch')}, imported"


def _compiler(_: Settings) -> str:
    """Compile and link a program of one line, which Inductor's need no less than."""
    name = compiler_name()
    path = shutil.which(name)
    if path is None:
        raise EnvironmentLacking(
            "there is no C++ compiler", expected=name, got="none on the PATH",
            remedy="Install g++, or set CXX",
        )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="handoff-compiler-") as scratch:
        source = Path(scratch) / "proof.cpp"
        source.write_text(_PROGRAM)
        command = [path, str(source), "-o", str(source.with_suffix(""))]
        _run(command, f"{name} compiles nothing", "a compiler with its headers and linker")
    return path


def _run(command: list[str], what: str, expected: str) -> None:
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False, cwd="/",
            stdin=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        got = f"none within {_LIMIT_S:.0f} s" if not isinstance(error, OSError) else str(error)
    else:
        if answer.returncode == 0:
            return
        lines = answer.stderr.strip().splitlines()
        got = lines[-1] if lines else f"exit code {answer.returncode}"
    raise EnvironmentLacking(
        what, expected=expected, got=one_line(got)[:300],
        remedy="'handoff doctor' says what is installed here; fix that",
    )  # fmt: skip


def run_worker(pool: str, limit: int | None, cores: str, name: str) -> None:
    """Replace this process by Prefect's worker; it ends with Ctrl-C or SIGTERM.

    `limit` is how many flow runs it has at once: None for one in a pool that builds, and any number
    of those that only wait. `cores`, such as `0-3,8`, are those that it and its flow runs may use.
    Several builds at once share them out, and `UsageProblem` is raised for more than cores. Raises
    `EnvironmentLacking` where this machine can't do the pool's jobs.
    """
    settings = read_settings()
    require_server(settings.prefect_api, prefect_login())
    require_writable_home(settings)
    if cores:
        os.sched_setaffinity(0, read_cores(cores))
    if limit is None and pool != CONTROL_POOL:
        limit = 1
    told = _shared_cores(pool, limit or 1)
    for line in prove(settings, pool):
        echo(line, err=True)
    threads = len(os.sched_getaffinity(0)) if cores and not told else None
    # Started from a shell with &, it would ignore the first SIGTERM, too.
    reset_signals()
    command = [
        sys.executable, "-P", "-m", "prefect", "worker", "start", "--type", "process",
        "--pool", pool,
        *(["--limit", str(limit)] if limit else []), *(["--name", name] if name else []),
    ]  # fmt: skip
    environment = {
        **worker_environment(settings, threads),
        **absolute_python_path(),
        **FOR_CHILDREN,
    }
    # Prefect reads settings from the folder that it stands in.
    os.chdir(empty_folder(settings.home))
    replace_process(command, {**environment, **told, "TMPDIR": str(own_temporary_folder())})


def _shared_cores(pool: str, limit: int) -> dict[str, str]:
    """Return the variable that tells flow runs which cores to choose from; none for one at once."""
    if limit == 1 or pool == CONTROL_POOL:
        return {}
    cores = os.sched_getaffinity(0)
    if limit > len(cores):
        raise UsageProblem(
            "More flow runs at once than cores", expected=f"a --limit of {len(cores)} at most",
            got=str(limit), remedy="Each builds on cores of its own: let the worker have fewer",
        )  # fmt: skip
    return as_variable(pool, share_out(cores, limit))


def own_temporary_folder() -> Path:
    """Make a folder for this user's temporary files, and return it.

    Prefect 3.8 puts a worker's files into `runner_storage` in the common one, which belongs to the
    first user who had a worker on the machine: another one's doesn't start.
    """
    folder = Path(tempfile.gettempdir()) / f"handoff-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise EnvironmentLacking(
            f"{folder} is somebody else's", expected="a folder that only this user can write to",
            got=stat.filemode(found.st_mode), remedy="Set TMPDIR to a folder of your own",
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
    # Of the cheap questions this is the one that needs a login where there is one.
    status = get_status(f"{api.rstrip('/')}/admin/version", login)
    if status in (401, 403):
        raise UsageProblem(
            "The Prefect server doesn't let this worker in",
            expected="its login in PREFECT_API_AUTH_STRING", got=f"HTTP status {status}",
            remedy="Set it to the server's PREFECT_SERVER_API_AUTH_STRING",
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
