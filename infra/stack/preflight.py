"""What a machine proves before it takes a job, and again while it waits for the next one.

A job that fails for want of a setting fails again with the next one, and each of them is a model's
release.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from handoff.artifacts.errors import EnvironmentLacking, HandoffError
from handoff.artifacts.printable import one_line
from handoff.artifacts.release.releases import open_releases
from handoff.flows.names import BUILD_POOL, CONTROL_POOL
from handoff.infra.engine.signing_key import ask_signer
from handoff.infra.extras import installed_version
from handoff.infra.servers import LOOPBACK, clock_ahead_s, get_status, mlflow_probe_url
from handoff.infra.settings import (
    Settings,
    compiler_name,
    missing_variables,
    mlflow_login,
    prefect_login,
    require_writable_home,
)

# S3 refuses what is a quarter of an hour off; leases and heartbeats of Prefect's are in minutes.
_CLOCK_S = 60.0
_PATIENCE_S = 20.0
_LIMIT_S = 120.0
# With less than this nothing is compiled, and hardly a log is written.
_ROOM_BYTES = 1 << 30
# Ledgers are signed by few keys: the first of many stand for them.
_LEDGERS = 3
# Pools whose flows write to ledgers, and to MLflow.
REGISTERING = (BUILD_POOL, CONTROL_POOL)
_PROGRAM = "#include <vector>\nint main() { return int(std::vector<int>{}.size()); }\n"


def run_checks(settings: Settings, pool: str, *, briefly: bool = False) -> tuple[str, ...]:
    """Return what was proved, in words; raise `EnvironmentLacking` with all that lacks.

    Every worker has to write to the store and read it, and to have the time and room on its disk.
    One that builds needs torch and a compiler, and one for `handoff-build` the key that signs.
    Those for the pool of a target sign nothing, and are asked for no key. `briefly` leaves out what
    takes seconds, or doesn't change while a machine works: keys, and importing torch.
    """
    checks: list[tuple[str, Callable[[Settings], str]]] = [
        ("settings", partial(_require_named_stores, pool)),
        ("store", _store), ("clock", _clock), ("room", _room),
    ]  # fmt: skip
    if pool in REGISTERING and urlsplit(settings.stores.tracking_uri).scheme in ("http", "https"):
        checks.append(("MLflow", _mlflow))
    if pool in REGISTERING and not briefly:
        checks.append(("trust", _trust))
    if pool == BUILD_POOL and not briefly:
        checks.append(("key", _key))
    if pool != CONTROL_POOL:
        checks += [*([] if briefly else [("torch", _torch)]), ("compiler", _compiler)]
    passed, lacking = [], []
    for name, check in checks:
        try:
            passed.append(f"{name}: {check(settings)}")
        except HandoffError as error:
            lacking.append((name, error))
    if lacking:
        raise EnvironmentLacking(
            f"this machine can't work for {pool}, and takes no job",
            expected="; ".join(f"{name}: {error.expected}" for name, error in lacking),
            got="; ".join(f"{name}: {error.what}: {error.got}" for name, error in lacking),
            remedy=". ".join(error.remedy for _, error in lacking),
        )
    return tuple(passed)


def _require_named_stores(pool: str, settings: Settings) -> str:
    """Look whether a stack elsewhere has its stores named here: each machine has some of its own.

    What is released into this machine's own would be nowhere for all others.
    """
    server = urlsplit(settings.prefect_api).hostname or ""
    required = ["HANDOFF_STORE", *(["MLFLOW_TRACKING_URI"] if pool in REGISTERING else [])]
    lacking = missing_variables(*required)
    if server not in LOOPBACK and lacking:
        raise EnvironmentLacking(
            "the stack's stores are not named here", expected=", ".join(required),
            got=f"no {' and no '.join(lacking)}, with a Prefect server at {server}",
            remedy=f"Set {' and '.join(lacking)} as the stack has it: 'handoff up "
            "--print-environment' prints it there",
        )  # fmt: skip
    return "the stack's" if server not in LOOPBACK else "of a stack on this machine"


def _store(settings: Settings) -> str:
    """Write to the store, read it back, and remove that again; look whether it is the one it was.

    A folder that isn't mounted can be written to as well.
    """
    location = settings.stores.objects
    # Nothing is verified: which keys are trusted is a check of its own.
    releases = open_releases(location, (), settings.stores.seen, patience_s=_PATIENCE_S)
    releases.require_ledgers()
    guarantees = releases.store.check()
    text = f"{location}, written to and read"
    return f"{text} ({'. '.join(guarantees.lacking)})" if guarantees.lacking else text


def _mlflow(settings: Settings) -> str:
    """Ask MLflow's server something that needs its login."""
    address = settings.stores.tracking_uri
    login = mlflow_login()
    if login is None:
        return f"{address}, whose login MLflow reads itself"
    status = get_status(mlflow_probe_url(address), login)
    if status in (401, 403):
        raise EnvironmentLacking(
            f"MLflow at {address} doesn't let this machine in",
            expected="its login in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or its "
            "token in MLFLOW_TRACKING_TOKEN",
            got=f"HTTP status {status} {'for the one that is set' if login else 'without one'}",
            remedy="Set them as the stack has them: 'handoff up --print-environment' prints them "
            "there",
        )  # fmt: skip
    if status != 200:
        raise EnvironmentLacking(
            f"no MLflow answers at {address}", expected="an answer",
            got=f"HTTP status {status}" if status else "none",
            remedy="Start it, or fix MLFLOW_TRACKING_URI",
        )  # fmt: skip
    return f"{address}, which answers"


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
    if key.make_missing and not Path(key.uri).exists():
        is_trusted = any(Path(place) in (key.public, key.public.parent) for place in trusted)
        if is_trusted and not key.public.exists():
            return "made by the first release"
        raise EnvironmentLacking(
            "no key signs here", expected="one whose public key is trusted (HANDOFF_TRUSTED_KEYS)",
            got="none; one that is made here would not be trusted",
            remedy="Set HANDOFF_SIGNING_KEY as the stack's other workers have it: a file, or a KMS",
        )  # fmt: skip
    return f"signs with {ask_signer(key, trusted).key_id[:12]}, which is trusted"


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


def _room(settings: Settings) -> str:
    """Look for room where builds and temporary files are written."""
    require_writable_home(settings)
    folders = (settings.home, Path(tempfile.gettempdir()))
    fullest = min(folders, key=lambda folder: shutil.disk_usage(folder).free)
    free = shutil.disk_usage(fullest).free
    if free < _ROOM_BYTES:
        raise EnvironmentLacking(
            "a disk is full", expected=f"at least {_ROOM_BYTES / 1e9:.1f} GB free",
            got=f"{free / 1e9:.1f} GB on the disk of {fullest}",
            remedy="Make room there, or name another folder in HANDOFF_HOME, or in TMPDIR",
        )  # fmt: skip
    return f"{free / 1e9:.0f} GB free"


def _torch(_: Settings) -> str:
    """Import torch as a step does: one that is installed may still lack a library."""
    command = [sys.executable, "-I", "-c", "import torch"]
    _run(command, "torch can't be imported", "a torch that a step can import")
    return f"{installed_version('torch')}, imported"


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
