"""Settings: the only reader of the environment.

| variable | what it sets | default |
|---|---|---|
| `HANDOFF_HOME` | local state: objects, MLflow's database, builds | the platform's data folder |
| `HANDOFF_STORE` | the objects: a folder or `s3://bucket/prefix` | `$HANDOFF_HOME/store` |
| `MLFLOW_TRACKING_URI` | the MLflow server | SQLite in `$HANDOFF_HOME/mlflow` |
| `PREFECT_API_URL` | the Prefect server that records the flow | an embedded one |
| `HANDOFF_SIGNING_KEY` | the key that signs: a PEM file, or a KMS's address | made in the home |
| `HANDOFF_SIGNING_PUBLIC_KEY` | its public key, which a KMS's needs | |
| `HANDOFF_TRUSTED_KEYS` | the trusted public keys: files, folders | `$HANDOFF_HOME/keys/trusted` |
| `AWS_*`, `MLFLOW_*` | what boto3 and MLflow read; only the steps that store see them | |
"""

from __future__ import annotations

import getpass
import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from artifacts.errors import EnvironmentLacking, UsageProblem
from artifacts.registering import SigningKey, Stores

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
_NETWORK_PREFIXES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_")
_NETWORK_NAMES = frozenset({"http_proxy", "https_proxy", "no_proxy", "REQUESTS_CA_BUNDLE"})
_STORE_PREFIXES = ("AWS_", "MLFLOW_", "BOTO_", *_NETWORK_PREFIXES)
_SIGNING_PREFIX = "HANDOFF_SIGNING_"
# What each key service's own client reads, by the scheme of the key's URI.
_KEY_SERVICES = {
    "awskms": ("AWS_", "BOTO_"),
    "gcpkms": ("GOOGLE_", "CLOUDSDK_"),
    "azurekms": ("AZURE_",),
}


def child_environment(
    *, stores: bool = False, keys: bool = False, whole: bool = False
) -> dict[str, str]:
    """Return what a child may see of the environment.

    `stores` adds the stores' settings, and `keys` those for signing: with a key that is held by a
    service, the credentials for that service, too.
    """
    if whole:
        return dict(os.environ)
    prefixes: tuple[str, ...] = ()
    if stores:
        prefixes += _STORE_PREFIXES
    if keys:
        prefixes += (_SIGNING_PREFIX,)
        if service := _KEY_SERVICES.get(signing_key_scheme()):
            prefixes += (*service, *_NETWORK_PREFIXES)
    names = _CHILD_NAMES | (_NETWORK_NAMES if _NETWORK_PREFIXES[0] in prefixes else frozenset())
    return {
        name: value
        for name, value in os.environ.items()
        if name in names or name.startswith(prefixes)
    }


def signing_key_scheme() -> str:
    """Return the scheme of the key that `HANDOFF_SIGNING_KEY` names; `file` without one."""
    scheme, separator, _ = os.environ.get("HANDOFF_SIGNING_KEY", "").partition(":")
    return scheme.lower() if separator else "file"


@dataclass(frozen=True)
class Settings:
    """Where this machine keeps its state, and which servers it talks to."""

    home: Path
    stores: Stores
    prefect_api: str
    signing_key: SigningKey

    @property
    def keys(self) -> Path:
        """The folder of this machine's keys."""
        return self.home / "keys"

    @property
    def private_keys(self) -> Path:
        """The folder of the keys that only the signing process may read."""
        return self.keys / "private"

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
    if scheme == "s3" and not store.removeprefix("s3://").strip("/"):
        raise UsageProblem(
            "HANDOFF_STORE names no bucket", expected="s3://bucket/prefix", got=store,
            remedy="Name the bucket",
        )  # fmt: skip
    if not separator:
        store = str(Path(store).expanduser().absolute())
        if Path(store).is_file():
            raise UsageProblem(
                "HANDOFF_STORE names a file", expected="a folder or s3://bucket/prefix", got=store,
                remedy="Set HANDOFF_STORE to one of these, or unset it",
            )  # fmt: skip
    tracking = os.environ.get("MLFLOW_TRACKING_URI", "")
    # In a folder of its own: what a step makes directly in the home folder it can't read back
    # (`infra.landlock`), and SQLite makes files beside its database.
    mlflow = home / "mlflow"
    embedded_root = f"{store.rstrip('/')}/mlflow" if separator else str(mlflow / "artifacts")
    stores = Stores(
        objects=store,
        tracking_uri=tracking or f"sqlite:///{mlflow / 'mlflow.db'}",
        artifact_root="" if tracking else embedded_root,
        trusted=_trusted_places(home),
        seen=home / "ledgers" / "seen.json",
    )
    return Settings(home, stores, os.environ.get("PREFECT_API_URL", ""), _signing_key(home))


def _trusted_places(home: Path) -> tuple[str, ...]:
    """Return the files and folders whose public keys are trusted."""
    named = [
        place for place in os.environ.get("HANDOFF_TRUSTED_KEYS", "").split(os.pathsep) if place
    ]
    for place in named:
        if not Path(place).expanduser().exists():
            raise UsageProblem(
                "HANDOFF_TRUSTED_KEYS names a place that isn't there",
                expected="files of public keys, or folders of files *.pub", got=place[:200],
                remedy="Mend it, or unset it to trust the keys in HANDOFF_HOME",
            )  # fmt: skip
    places = [Path(place).expanduser().absolute() for place in named]
    return tuple(map(str, places or [trusted_folder(home)]))


def trusted_folder(home: Path) -> Path:
    """Return the folder of the public keys that are trusted where nothing else is said."""
    return home / "keys" / "trusted"


def _signing_key(home: Path) -> SigningKey:
    """Return the key that signs: the one that is named, or this home's own, made when needed."""
    public = os.environ.get("HANDOFF_SIGNING_PUBLIC_KEY", "")
    place = Path(public).expanduser().absolute() if public else trusted_folder(home) / "own.pub"
    named = os.environ.get("HANDOFF_SIGNING_KEY", "")
    if not named:
        return SigningKey(str(home / "keys" / "private" / "signing.pem"), place, make_missing=True)
    return SigningKey(named, place)


def author_name() -> str:
    """Return who works here, as ledgers name them: `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _home() -> Path:
    named = os.environ.get("HANDOFF_HOME", "")
    if named:
        return Path(named).expanduser().absolute()
    from platformdirs import user_data_path

    return user_data_path("handoff", appauthor=False)


def paths_kept_from_steps() -> tuple[Path, ...]:
    """Return what no child but the signing one may read: keys, in a folder or a file.

    Empty where that can't be had: the folders above must be none in which children make files,
    because they couldn't read these (`infra.landlock`). Where the platform's temporary folder is
    one, a compiler would fail.
    """
    named = os.environ.get("HANDOFF_SIGNING_KEY", "")
    paths = [_home() / "keys" / "private"]
    if named and signing_key_scheme() == "file":
        paths.append(Path(urlsplit(named).path if ":" in named else named).expanduser().absolute())
    scratch = {Path(os.path.realpath(p)) for p in ("/tmp", os.environ.get("TMPDIR") or "/tmp")}  # noqa: S108
    return tuple(path for path in paths if not scratch & set(Path(os.path.realpath(path)).parents))


def require_writable_home(settings: Settings) -> None:
    """Make the home folder; raise `EnvironmentLacking` when nothing can be written there.

    Its folders are made, too, before any step starts: a step can't read what comes to lie directly
    in the home folder while it runs (`infra.landlock`).
    """
    try:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (settings.keys, settings.private_keys, *_folders_of_steps(settings)):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=settings.home):
            pass
    except OSError as error:
        raise EnvironmentLacking(
            f"Handoff can't write its state to {settings.home}",
            expected="a folder that this user may write to",
            got=error.strerror or str(error),
            remedy="Set HANDOFF_HOME to a writable folder, or mend the permissions of that one",
        ) from error


def _folders_of_steps(settings: Settings) -> list[Path]:
    folders = [
        settings.home / "builds", trusted_folder(settings.home), settings.home / "ledgers"
    ]  # fmt: skip
    if "://" not in settings.stores.objects:
        folders.append(Path(settings.stores.objects))
    if settings.stores.artifact_root:
        folders.append(settings.home / "mlflow")
    return folders


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
