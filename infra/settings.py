"""Settings: the only reader of the environment.

| variable | what it sets | default |
|---|---|---|
| `HANDOFF_HOME` | local state: objects, MLflow's database, builds | the platform's data folder |
| `HANDOFF_STORE` | the objects: a folder or `s3://bucket/prefix` | `$HANDOFF_HOME/store` |
| `MLFLOW_TRACKING_URI` | the MLflow server | SQLite in `$HANDOFF_HOME` |
| `HANDOFF_TRUSTED_KEYS` | public keys: files, folders, `:` between | `$HANDOFF_HOME/keys/trusted` |
| `PREFECT_API_URL` | the Prefect server that records the flow | an embedded one |
| `AWS_*`, `MLFLOW_*` | what boto3 and MLflow read; only the steps that store see them | |
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from artifacts.errors import EnvironmentLacking, UsageProblem
from artifacts.steps import Stores

# What a child needs to find its compiler, its libraries and its threads. Nothing else goes in:
# a delivery's weights and a compiler's output have no business with credentials.
_CHILD_NAMES = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV",
        "PYTHONPATH", "PYTHONHASHSEED", "PYTHONFAULTHANDLER", "LD_LIBRARY_PATH", "LD_PRELOAD",
        "CC", "CXX", "CUDA_HOME", "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY",
    }
)  # fmt: skip
_STORE_PREFIXES = ("AWS_", "MLFLOW_", "BOTO_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_")
_STORE_NAMES = frozenset({"http_proxy", "https_proxy", "no_proxy", "REQUESTS_CA_BUNDLE"})


def child_environment(*, stores: bool, whole: bool = False) -> dict[str, str]:
    """Return what a child may see of the environment; `stores` adds the stores' settings."""
    if whole:
        return dict(os.environ)
    return {
        name: value
        for name, value in os.environ.items()
        if name in _CHILD_NAMES
        or (stores and (name.startswith(_STORE_PREFIXES) or name in _STORE_NAMES))
    }


@dataclass(frozen=True)
class Settings:
    """Where this machine keeps its state, and which servers it talks to."""

    home: Path
    stores: Stores
    prefect_api: str

    @property
    def is_embedded(self) -> bool:
        """Tell whether no Prefect server is named, so that one is started for each flow run."""
        return not self.prefect_api


def read_settings() -> Settings:
    """Return the settings that the environment asks for; raise `UsageProblem` for a bad one."""
    home = _home()
    store = os.environ.get("HANDOFF_STORE", "") or str(home / "store")
    scheme, separator, _ = store.partition("://")
    if separator and scheme != "s3":
        raise UsageProblem(
            "HANDOFF_STORE names no store", expected="a folder or s3://bucket/prefix", got=store,
            remedy="Set HANDOFF_STORE to one of these, or unset it",
        )  # fmt: skip
    if not separator:
        store = str(Path(store).expanduser().absolute())
    tracking = os.environ.get("MLFLOW_TRACKING_URI", "")
    embedded_root = f"{store.rstrip('/')}/mlflow" if separator else str(home / "mlflow")
    stores = Stores(
        objects=store,
        tracking_uri=tracking or f"sqlite:///{home / 'mlflow.db'}",
        artifact_root="" if tracking else embedded_root,
    )
    return Settings(home, stores, os.environ.get("PREFECT_API_URL", ""))


def _home() -> Path:
    named = os.environ.get("HANDOFF_HOME", "")
    if named:
        return Path(named).expanduser().absolute()
    from platformdirs import user_data_path

    return user_data_path("handoff", appauthor=False)


def trusted_places(settings: Settings) -> tuple[Path, ...]:
    """Return the files and folders of the public keys that are trusted; none before there are."""
    named = os.environ.get("HANDOFF_TRUSTED_KEYS", "")
    if named:
        return tuple(Path(place).expanduser() for place in named.split(os.pathsep) if place)
    usual = settings.home / "keys" / "trusted"
    return (usual,) if usual.is_dir() else ()


def require_writable_home(settings: Settings) -> None:
    """Make the home folder; raise `EnvironmentLacking` when nothing can be written there."""
    try:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=settings.home):
            pass
    except OSError as error:
        raise EnvironmentLacking(
            f"Handoff can't write its state to {settings.home}",
            expected="a folder that this user may write to",
            got=error.strerror or str(error),
            remedy="Set HANDOFF_HOME to a writable folder, or mend the permissions of that one",
        ) from error


def prepare_prefect(settings: Settings) -> None:
    """Set what Prefect reads at import: quiet, offline, and its own state below the home folder.

    Only what the user has not set is set. Without a server the embedded one keeps its database
    in the home folder, so that a person's own Prefect profile is left alone.
    """
    defaults = {
        "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        # The flow runs in this process, whose console is the command line's: refusals are told
        # there once, in a sentence. The server's record of the run keeps the trace.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    }
    if settings.is_embedded:
        defaults |= {
            "PREFECT_HOME": str(settings.home / "prefect"),
            "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
            # A first start migrates a fresh database, which took 12 to 17 s on two busy cores.
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def compiler_name() -> str:
    """Return the C++ compiler that Inductor will call: `$CXX`, or g++."""
    return os.environ.get("CXX", "") or "g++"


def replace_process(command: list[str], extra: dict[str, str]) -> NoReturn:
    """Replace this process by `command`, with `extra` variables in its environment."""
    os.execvpe(command[0], command, {**os.environ, **extra})  # noqa: S606 - argv of our own
