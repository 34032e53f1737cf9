"""Environments: what children, servers and workers see of this process's environment.

Beside `infra.settings` this is the only reader of the environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NoReturn

from handoff.artifacts.isolation import isolated_environment
from handoff.infra.engine.import_paths import leave_working_folder
from handoff.infra.settings import Settings, absolute_tracking_uri, signing_key_scheme

# What a service of the served stack keeps of the supervisor's environment.
KeptVariables = Literal["little", "stores", "prefect", "all", "token"]
# In the environment of all that `handoff up` starts: the home folder, and the service's name.
STACK_MARK, SERVICE_MARK = "HANDOFF_STACK", "HANDOFF_SERVICE"
QUIET = {
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}

# A Prefect server whose database is away for seconds answers 500, which its client takes for final
# (3.8): repeated like 503, up to five times within a minute, it doesn't end a flow.
_RETRY_SETTINGS = {"PREFECT_CLIENT_RETRY_EXTRA_CODES": "500"}

# What a child needs to find its compiler, its libraries and its threads. Nothing else goes in:
# a delivery's weights and a compiler's output have no business with credentials.
_CHILD_NAMES = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV",
        "PYTHONHASHSEED", "PYTHONFAULTHANDLER", "LD_LIBRARY_PATH", "LD_PRELOAD",
        "CC", "CXX", "CUDA_HOME", "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_SPINCOUNT",
        "MKL_NUM_THREADS", "KMP_AFFINITY", "KMP_BLOCKTIME", "GOMP_CPU_AFFINITY",
    }
)  # fmt: skip
# Settings that name files and folders, which may be relative to the folder that one stands in.
_PATHS = frozenset(
    {
        "HANDOFF_HOME", "HANDOFF_STORE", "HANDOFF_SIGNING_KEY",
        "HANDOFF_SIGNING_PUBLIC_KEY", "HANDOFF_RECIPES", "HANDOFF_POSTGRES", "TMPDIR",
        "HANDOFF_FORGE_TOKEN_FILE",
        "PREFECT_HOME", "PREFECT_PROFILES_PATH", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR",
        "GOOGLE_APPLICATION_CREDENTIALS", "XDG_CONFIG_HOME", "CUDA_HOME", "VIRTUAL_ENV",
    }
)  # fmt: skip
_PATH_LIST = "HANDOFF_TRUSTED_KEYS"
_NETWORK_PREFIXES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_")
_NETWORK_NAMES = frozenset({"http_proxy", "https_proxy", "no_proxy", "REQUESTS_CA_BUNDLE"})
_STORE_PREFIXES = ("AWS_", "MLFLOW_", "DATABRICKS_", "BOTO_", *_NETWORK_PREFIXES)
# What fetches deliveries asks S3, git (and ssh for it), and servers behind https; what gets another
# torch, uv.
_SOURCE_PREFIXES = ("AWS_", "BOTO_", "GIT_", "SSH_", "UV_", *_NETWORK_PREFIXES)
_SOURCE_NAMES = frozenset({"XDG_CONFIG_HOME"})
_SIGNING_PREFIX = "HANDOFF_SIGNING_"
# Variables that were set for Prefect in this process, and not by its user.
_set_for_this_process: set[str] = set()
# For what notifies people alone (`infra.notifications`): it can write to a team's repositories.
FORGE_TOKEN = "HANDOFF_FORGE_TOKEN"  # noqa: S105 - a variable's name
# What each key service's own client reads, by the scheme of the key's URI.
_KEY_SERVICES = {
    "awskms": ("AWS_", "BOTO_"),
    "gcpkms": ("GOOGLE_", "CLOUDSDK_"),
    "azurekms": ("AZURE_",),
}


def child_environment(
    *, stores: bool = False, sources: bool = False, keys: bool = False, whole: bool = False
) -> dict[str, str]:
    """Return what a child may see of the environment.

    `stores` adds the stores' settings, `sources` what deliveries are fetched with, and `keys` those
    for signing: with a key that is held by a service, the credentials for that service, too.
    """
    if whole:
        # With `PYTHONPATH`, which the user's own code is found by.
        return {name: value for name, value in os.environ.items() if name != FORGE_TOKEN}
    prefixes: tuple[str, ...] = ()
    if stores:
        prefixes += _STORE_PREFIXES
    if sources:
        prefixes += _SOURCE_PREFIXES
    if keys:
        prefixes += (_SIGNING_PREFIX,)
        if service := _KEY_SERVICES.get(signing_key_scheme()):
            prefixes += (*service, *_NETWORK_PREFIXES)
    names = _CHILD_NAMES | (_NETWORK_NAMES if _NETWORK_PREFIXES[0] in prefixes else frozenset())
    if sources:
        names |= _SOURCE_NAMES
    return isolated_environment({
        name: value
        for name, value in os.environ.items()
        if name in names or name.startswith(prefixes)
    })  # fmt: skip


def prepare_prefect(settings: Settings, *, retries: int | None = None) -> None:
    """Set what Prefect reads at import: quiet, offline, and its own state below the home folder.

    It may leave the working folder, too (`infra.engine.import_paths`). Only what the user has not
    set is set. Without a server the embedded one keeps its database in the home folder, so that a
    person's own Prefect profile is left alone. `retries` is how often a request is sent again, with
    waits that double, where a person or a sender waits for it.
    """
    leave_working_folder(settings.home)
    defaults = (
        QUIET
        | _RETRY_SETTINGS
        | {
            "PREFECT_LOGGING_LEVEL": "WARNING",
            # The flow runs in this process, whose console is the command line's: refusals are shown
            # there once, in a sentence. The server's record of the run keeps the trace.
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
            "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        }
    )
    if settings.is_embedded:
        defaults["PREFECT_HOME"] = str(settings.home / "prefect")
    if retries is not None:
        defaults["PREFECT_CLIENT_MAX_RETRIES"] = str(retries)
    for name in defaults.keys() - os.environ.keys():
        os.environ[name] = defaults[name]
        _set_for_this_process.add(name)


def supervisor_environment(home: Path) -> dict[str, str]:
    """Return the environment that the served stack's supervisor starts in: this one, marked."""
    # It works in a folder of its own.
    return {**os.environ, **absolute_python_path(), STACK_MARK: str(home)}


def with_absolute_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what of an environment's paths has to be set to mean the same in another folder."""
    changed = {
        name: _absolute_path(value)
        for name, value in environment.items()
        if name in _PATHS and value
    }
    if paths := environment.get(_PATH_LIST, "").split(os.pathsep):
        changed[_PATH_LIST] = os.pathsep.join(_absolute_path(path) for path in paths if path)
    if tracking := environment.get("MLFLOW_TRACKING_URI", ""):
        changed["MLFLOW_TRACKING_URI"] = absolute_tracking_uri(tracking)
    return {n: value for n, value in changed.items() if value != environment.get(n, "")}


def _absolute_path(path: str) -> str:
    # A URI, such as that of a store or of a key, means the same everywhere.
    if path.startswith("~") or ":" in path:
        return path
    return str(Path(path).absolute())


def absolute_python_path() -> dict[str, str]:
    """Return `PYTHONPATH` as it reads in another folder; nothing where there is none."""
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if not folders:
        return {}
    return {"PYTHONPATH": os.pathsep.join(str(Path(folder).absolute()) for folder in folders)}


def service_environment(keeps: KeptVariables) -> dict[str, str]:
    """Return what a service of the served stack keeps of the supervisor's environment.

    `token` is all with the token for commit statuses, which others don't see.

    The virtual environment's commands come first on the PATH: MLflow starts uvicorn, and workers
    start Python, by the name alone.
    """
    is_whole = keeps in ("all", "token")
    environment = child_environment(stores=keeps == "stores", whole=is_whole)
    if keeps == "prefect":
        environment |= prefect_variables()
    if keeps == "token" and (token := os.environ.get(FORGE_TOKEN)):
        environment[FORGE_TOKEN] = token
    if is_whole:
        # Those who ask the servers have no business with what these keep to themselves.
        servers = ("PREFECT_SERVER_", "MLFLOW_AUTH_", "MLFLOW_BACKEND_")
        environment = {k: v for k, v in environment.items() if not k.startswith(servers)}
    environment.pop("MLFLOW_TRACKING_URI", None)
    environment[STACK_MARK] = os.environ.get(STACK_MARK, "")
    return environment | {"PATH": path_with_own_commands()}


def prefect_variables() -> dict[str, str]:
    """Return the variables that Prefect reads."""
    return {name: value for name, value in os.environ.items() if name.startswith("PREFECT_")}


def path_with_own_commands() -> str:
    """Return the PATH with the commands of this Python's own environment first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def worker_environment(settings: Settings, threads: int | None) -> dict[str, str]:
    """Return what a worker's environment lacks; what the user has set stays as it is.

    `threads` is how many a flow run's numerics use; None leaves that to them.
    """
    defaults = (
        QUIET
        | _RETRY_SETTINGS
        | {
            "PREFECT_HOME": str(settings.home / "prefect"),
            # A run whose machine died shows by its missing heartbeats; 30 s is Prefect's minimum.
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
            "PREFECT_WORKER_QUERY_SECONDS": "5",
            "PREFECT_LOGGING_EXTRA_LOGGERS": "handoff",
        }
    )
    if threads is not None:
        defaults["OMP_NUM_THREADS"] = str(threads)
    set_by_user = os.environ.keys() - _set_for_this_process
    missing = {name: value for name, value in defaults.items() if name not in set_by_user}
    return missing | {"PATH": path_with_own_commands()}


def replace_process(command: list[str], extra: dict[str, str]) -> NoReturn:
    """Replace this process by `command`, with `extra` variables in its environment.

    What was set for Prefect here (`prepare_prefect`) isn't for the one that takes its place.
    """
    variables = child_environment(whole=True).items()
    environment = {
        name: value for name, value in variables if name not in _set_for_this_process
    } | extra
    os.execvpe(command[0], command, environment)  # noqa: S606 - argv of our own
