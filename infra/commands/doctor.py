"""`handoff doctor`: what this machine can do, and what is missing."""

from __future__ import annotations

import platform
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from handoff.artifacts.delivery.uri import strip_login
from handoff.artifacts.errors import HandoffError, UsageProblem
from handoff.artifacts.recipe.gpu_generations import FIRST_SPECIFIC
from handoff.artifacts.recipe.target import TARGETS, ArmTarget, host_cpu_flags
from handoff.artifacts.release.signing import read_trust
from handoff.infra.engine.confinement import find_confinement_gaps
from handoff.infra.engine.landlock import landlock_version
from handoff.infra.extras import (
    EXTRAS,
    has_extra,
    how_to_install,
    installed_version,
    missing_packages,
)
from handoff.infra.settings import (
    Settings,
    compiler_name,
    paths_kept_from_steps,
    prefect_login,
    read_notification_settings,
    read_settings,
    require_writable_home,
    signing_key_scheme,
)
from handoff.infra.stack.layout import StackLayout
from handoff.infra.stack.setup import read_setup
from handoff.infra.terminal.console import print_json
from handoff.infra.terminal.output import echo
from handoff.tasks.compile.arm.emulation import describe_emulator
from handoff.tasks.compile.arm.sysroot import PACKAGES, is_arm_host, lacking
from handoff.tasks.compile.cross.fatbinary import REMEDY, find_fatbinary

Answer = Literal["ok", "note", "missing"]


# What is done on a machine that has an extra, and what isn't where it is lacking.
_USES = {
    "s3": "stores in S3",
    "release": "compiling, verifying and registering: handoff release, promote, ui",
    "stack": "a team's services on one machine: handoff up",
}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: `missing` is what this machine can't do its work without."""

    name: str
    answer: Answer
    found: str
    remedy: str = ""


def run_checks(*, as_json: bool) -> int:
    """Print every check; return 0 when nothing is missing of what is installed here, else 1."""
    settings = read_settings()
    checks = [_python(), _package("torch"), *_extras(), _processor(), _gpu(), _home(settings)]
    if has_extra("release"):
        checks += [_compiler(), _fatbinary(), _arm(), _keys(settings)]
    checks += [_trust(settings), _confinement(), _store(settings)]
    if has_extra("release"):
        checks += [*_stack(settings), *_spool(settings), _registry(settings), _prefect(settings)]
        checks += [] if settings.is_embedded else [*_workers(settings), _notifications(settings)]
    code = 1 if any(check.answer == "missing" for check in checks) else 0
    if as_json:
        print_json({"ok": code == 0, "checks": [vars(check) for check in checks]})
        return code
    for check in checks:
        echo(f"{check.answer:8} {check.name:10} {check.found}")
        if check.remedy:
            echo(f"{'':19} {check.remedy}")
    return code


def _python() -> Check:
    return Check("python", "ok", f"{platform.python_version()}, {' '.join(platform.libc_ver())}")


def _package(name: str) -> Check:
    """Read a version from the package's metadata: importing torch would take seconds."""
    version = installed_version(name)
    if version is None:
        return Check(name, "missing", "not installed", f"Install the package {name} again")
    return Check(name, "ok", version)


def _extras() -> list[Check]:
    """Return what this machine is installed for: serving needs less than releasing."""
    checks = []
    for extra, known_by in EXTRAS.items():
        name, lacking = f"[{extra}]", missing_packages(extra)
        if not has_extra(extra):
            found = f"not installed; needed for {_USES[extra]}"
            checks.append(Check(name, "note", found, f"pip install 'handoff[{extra}]'"))
        elif lacking:
            found = f"without {', '.join(lacking)}"
            checks.append(Check(name, "missing", found, how_to_install(extra)))
        else:
            found = ", ".join(f"{package} {installed_version(package)}" for package in known_by)
            checks.append(Check(name, "ok", f"{found}: {_USES[extra]}"))
    return checks


def _compiler() -> Check:
    name = compiler_name()
    path = shutil.which(name)
    if path is None:
        return Check("compiler", "missing", f"no {name}", "Install g++, or set CXX")
    answer = subprocess.run(
        [path, "--version"], capture_output=True, text=True, timeout=30, check=False
    )
    if answer.returncode:
        return Check("compiler", "missing", f"{name} fails: {answer.stderr.strip()[:200]}")
    return Check("compiler", "ok", answer.stdout.splitlines()[0])


def _fatbinary() -> Check:
    """Return whether packages for GPUs before sm_90, and for several, can be built here."""
    program = find_fatbinary()
    if program is None:
        found = f"none: packages for GPUs before sm_{FIRST_SPECIFIC}, or for several, aren't built"
        return Check("fatbinary", "note", found, REMEDY)
    return Check("fatbinary", "ok", str(program))


def _arm() -> Check:
    """Return whether packages for ARM64 can be built and verified here, or what that lacks."""
    if is_arm_host():
        return Check("arm64", "ok", "this machine's own")
    try:
        missing, emulator = lacking(), ""
        if not missing:
            emulator = describe_emulator(ArmTarget("v8.2"))
    except HandoffError as error:
        return Check("arm64", "note", error.got, error.remedy)
    if missing:
        remedy = f"To build for it: apt-get install {PACKAGES} (Debian), then 'make arm-ready'"
        return Check("arm64", "note", f"not built here: no {'; no '.join(missing)}", remedy)
    return Check("arm64", "ok", f"cross-compiled, and run by {emulator}")


def _processor() -> Check:
    flags = host_cpu_flags()
    fitting = [
        slug for slug, target in TARGETS.items()
        if target.kind != "cuda" and target.cpu_flags <= flags
    ]  # fmt: skip
    if not fitting:
        return Check(
            "processor", "missing", f"{platform.machine()} without AVX2",
            "Packages are built for x86-64 processors with AVX2 or AVX-512, and for ARMv8.2",
        )  # fmt: skip
    extra = sorted(flags & {"avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"})
    return Check("processor", "ok", ", ".join(fitting) + (f"; {' '.join(extra)}" if extra else ""))


def _gpu() -> Check:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Check("gpu", "note", "none: no nvidia-smi; packages for GPUs are built, not run")
    answer = subprocess.run(
        [program, "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    gpus = answer.stdout.strip() if answer.returncode == 0 else "nvidia-smi finds none"
    return Check("gpu", "note", gpus.replace("\n", "; ") or "none")


def _home(settings: Settings) -> Check:
    try:
        require_writable_home(settings)
    except HandoffError as error:
        return Check("home", "missing", error.got, error.remedy)
    free = shutil.disk_usage(settings.home).free / 1e9
    return Check("home", "ok", f"{settings.home}, {free:.0f} GB free")


def _keys(settings: Settings) -> Check:
    """Return whether the steps that run delivered and compiled code are kept from signing keys."""
    if signing_key_scheme() != "file":
        return Check("keys", "ok", f"held by a service ({signing_key_scheme()})")
    if not landlock_version():
        return Check(
            "keys", "note", "every step can read the signing key: this kernel has no Landlock",
            "Run Linux 5.19 or newer with landlock among its security modules, or sign with a key "
            "service (HANDOFF_SIGNING_KEY)",
        )  # fmt: skip
    protected = paths_kept_from_steps()
    if settings.private_keys not in protected:
        return Check(
            "keys", "note", "every step can read the signing key: it lies where steps make files",
            "Set HANDOFF_HOME to a folder that isn't below the one for temporary files",
        )  # fmt: skip
    return Check("keys", "ok", f"only signing can read {', '.join(map(str, protected))} (Landlock)")


def _trust(settings: Settings) -> Check:
    """Return how many keys are trusted: a pull and a load need one."""
    try:
        keys = read_trust(settings.stores.trusted, may_lack=True).keys
    except UsageProblem as error:
        return Check("trust", "missing", error.got, error.remedy)
    if not keys:
        return Check(
            "trust", "note", "nobody's signature yet: no key is trusted here",
            "handoff keys trust FILE, with what 'handoff keys show' printed where it was released",
        )  # fmt: skip
    return Check("trust", "ok", f"what {len(keys)} key{'s' * (len(keys) != 1)} signed")


def _confinement() -> Check:
    """Return what a process that holds a delivery or compiled code could do, as one has tried."""
    if possible := find_confinement_gaps():
        return Check(
            "confinement", "note", "a process that holds a delivery or compiled code "
            + ", ".join(possible), "Run Linux 6.12 or newer with landlock among its security "
            "modules; in a container, permit Landlock, seccomp and network namespaces",
        )  # fmt: skip
    return Check(
        "confinement", "ok", "processes that hold a delivery or compiled code reach only their "
        "own files: no sockets, no network, no other process",
    )  # fmt: skip


def _registry(settings: Settings) -> Check:
    uri = settings.stores.tracking_uri
    if not uri.startswith("http"):
        return Check("registry", "ok", "MLflow, embedded (SQLite in the home folder)")
    return _reachable("registry", uri, "MLFLOW_TRACKING_URI")


def _prefect(settings: Settings) -> Check:
    if settings.is_embedded:
        return Check("flows", "ok", "Prefect, embedded (a server is started for each flow run)")
    return _reachable("flows", settings.prefect_api, "PREFECT_API_URL")


def _stack(settings: Settings) -> Iterator[Check]:
    """Compare this shell's store with that of the home's stack, where one was set up."""
    layout = StackLayout(settings.home)
    setup = read_setup(layout)
    running = layout.read_stack()
    stack_store = (
        running.store if running else setup.settings.get("HANDOFF_STORE", "") if setup else ""
    )
    if not stack_store:
        return
    if stack_store == settings.stores.objects:
        yield Check("stack", "ok", f"{'runs' if running else 'is down'}, with this store")
        return
    yield Check(
        "stack", "missing", f"it has the store {stack_store}, "
        f"and this shell {settings.stores.objects}",
        f"Run '. {layout.environment}', or set HANDOFF_STORE: else what is released here is in "
        "another store",
    )  # fmt: skip


def _workers(settings: Settings) -> Iterator[Check]:
    """Report workers of the server that left their pool, since their machine lacks something."""
    from handoff.infra.engine.environments import prepare_prefect
    from handoff.infra.prefect.absences import fetch_absences

    prepare_prefect(settings, retries=0)
    try:
        absences = fetch_absences(settings.prefect_api, prefect_login())
    except HandoffError:
        # Another check reports what is wrong with the server.
        return
    for absence in absences:
        departure = f"{absence.worker} on {absence.machine} left {absence.pool} at {absence.since}"
        yield Check("workers", "note", f"{departure}: {absence.why}", absence.remedy)


def _notifications(settings: Settings) -> Check:
    """Return whom a refused release or a bad night reaches: as this shell says, or the stack."""
    setup = read_setup(StackLayout(settings.home))
    stack_settings = setup.settings if setup else {}
    notifications = read_notification_settings()
    block = notifications.block or stack_settings.get("HANDOFF_NOTIFY", "")
    forge = notifications.forge or stack_settings.get("HANDOFF_FORGE", "")
    ways = [f"messages through {block}"] if block else []
    ways += [f"commit statuses on {forge}"] if forge else []
    if ways:
        return Check("notified", "ok", " and ".join(ways), "'handoff tell --test' sends one")
    return Check(
        "notified", "note", "nobody, of a refused release or a bad night",
        "Set HANDOFF_NOTIFY or HANDOFF_FORGE before 'handoff up'",
    )  # fmt: skip


def _spool(settings: Settings) -> Iterator[Check]:
    """Report commits that wait for the Prefect server, or that it has refused for good."""
    from handoff.infra.triggers.spool import Spool

    spool = Spool(settings.home)
    waiting, aside = spool.list_waiting(), spool.list_set_aside()
    if waiting:
        many = "1 commit waits" if len(waiting) == 1 else f"{len(waiting)} commits wait"
        yield Check(
            "spool", "note", f"{many} for the Prefect server, since {waiting[0].since}",
            "'handoff notify --kept' posts what waits; the webhook does so by itself",
        )  # fmt: skip
    if aside:
        newest = aside[-1]
        yield Check(
            "spool", "note", f"{len(aside)} set aside; the last one is {newest.what}: {newest.why}",
            f"Fix that, tell it again, and remove {settings.home / 'spool' / 'set-aside'}",
        )  # fmt: skip


def _store(settings: Settings) -> Check:
    location, is_s3 = settings.stores.objects, settings.stores.objects.startswith("s3://")
    if is_s3 and not has_extra("s3"):
        return Check("store", "missing", f"{location}, without [s3]", how_to_install("s3"))
    from handoff.artifacts.release.releases import open_releases

    try:
        # A person waits for this one. Nothing is verified: trust is a check of its own.
        releases = open_releases(location, (), settings.stores.seen, patience_s=10)
        if missing := releases.missing():
            error = releases.missing_ledgers_error(missing)
            return Check("store", "missing", f"{location} lacks {error.expected}", error.remedy)
        if not is_s3:
            return Check("store", "ok", f"the folder {Path(location)}")
        if not has_extra("release"):
            # Who pulls may have leave to read alone.
            count = len(releases.models())
            return Check("store", "ok", f"{location}, {count} model{'s' * (count != 1)}")
        guarantees = releases.store.check()
    except HandoffError as error:
        return Check("store", "missing", error.got, error.remedy)
    if guarantees.lacking:
        return Check("store", "note", location, ". ".join(guarantees.lacking))
    return Check("store", "ok", location)


def _reachable(name: str, uri: str, variable: str) -> Check:
    """Open a connection to the server that `uri` names; credentials in it are not shown."""
    parts = urlsplit(uri)
    shown = strip_login(uri)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=3):
            return Check(name, "ok", shown)
    except OSError as error:
        reason = error.strerror or str(error)
        return Check(name, "missing", f"{shown}: {reason}", f"Start it, or unset {variable}")
