"""Settings: the one place that reads them, with `infra.home`, which it begins with.

What a child process sees of the environment is decided in `infra.engine.environments`.

| variable | what it sets | default |
|---|---|---|
| `HANDOFF_HOME` | local state: objects, MLflow's database, builds | the platform's data folder |
| `HANDOFF_STORE` | the objects: a folder or `s3://bucket/prefix` | `$HANDOFF_HOME/store` |
| `HANDOFF_STEP_TIME` | a factor of the steps' limits of time | 1 |
| `HANDOFF_STEP_MEMORY` | the memory that a step may take, such as `64G` | what is free here |
| `MLFLOW_TRACKING_URI` | the MLflow server | SQLite in `$HANDOFF_HOME/mlflow` |
| `MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_PASSWORD` | its login | none |
| `MLFLOW_TRACKING_TOKEN` | a token in the place of that | |
| `PREFECT_API_URL` | the Prefect server that records the flow | an embedded one |
| `PREFECT_API_AUTH_STRING` | its login, `user:password` | none |
| `PREFECT_API_KEY` | Prefect Cloud's key in the place of that | none |
| `HANDOFF_SIGNING_KEY` | the key that signs: a PEM file, or a KMS's address | made in the home |
| `HANDOFF_SIGNING_PUBLIC_KEY` | its public key, which a KMS's needs | |
| `HANDOFF_TRUSTED_KEYS` | the trusted public keys: files, folders | `$HANDOFF_HOME/keys/trusted` |
| `HANDOFF_RECIPES` | the recipes of models, `MODEL.toml` each | `$HANDOFF_HOME/recipes` |
| `HANDOFF_LOG` | `json`: progress and services' logs are JSON, an object a line | text |
| `OTEL_EXPORTER_OTLP_ENDPOINT` | the collector of OpenTelemetry's for releases' traces | nobody |
| `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME` | its login, and what it is told | `handoff` |
| `OTEL_SDK_DISABLED` | `true`: no traces are sent | |
| `CXX` | the C++ compiler that Inductor calls | `g++` |
| `HANDOFF_NOTIFY` | a notification block of Prefect's, `TYPE/NAME`, to tell people by | nobody |
| `HANDOFF_FORGE` | whose commits get a status: `github`, `gitlab` or `gitea` | nobody's |
| `HANDOFF_FORGE_URL` | its address | `https://api.github.com`, `https://gitlab.com` |
| `HANDOFF_FORGE_TOKEN_FILE` | the file of a token that may write statuses there | |
| `HANDOFF_FORGE_TOKEN` | the token itself, where it is in no file | |
| `AWS_*`, `MLFLOW_*`, `DATABRICKS_*` | what boto3 and MLflow read; steps that store see it | |
| `PREFECT_SERVER_DATABASE_CONNECTION_URL` | for `handoff up`: the PostgreSQL to use | its own |
| `MLFLOW_BACKEND_STORE_URI` | for `handoff up`: MLflow's database, where that one can't have it | |
| `PREFECT_SERVER_API_AUTH_STRING` | for `handoff up`: Prefect's `user:password` | no login |
| `MLFLOW_AUTH_ADMIN_PASSWORD` | for `handoff up`: that of MLflow's user `admin` | no login |
| `HANDOFF_POSTGRES` | for `handoff up`: the folder of initdb and postgres | looked for |
"""

from __future__ import annotations

import getpass
import os
import re
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.host import HostSettings, SigningKey, Stores
from handoff.infra.home import home_folder, store_location


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
        """Return whether no Prefect server is named, so that one is started for each flow run."""
        return not self.prefect_api


def read_settings() -> Settings:
    """Return the settings that the environment asks for; raise `UsageProblem` for a bad one."""
    home = home_folder()
    store = store_location(home)
    tracking = absolute_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI", ""))
    # In a folder of its own: what a step makes directly in the home folder it can't read back
    # (`infra.engine.landlock`), and SQLite makes files beside its database.
    stores = Stores(
        objects=store,
        tracking_uri=tracking or f"sqlite:///{home / 'mlflow' / 'mlflow.db'}",
        artifact_root="" if tracking else artifact_root(home, store),
        trusted=_trusted_paths(home),
        seen=home / "ledgers" / "seen.json",
    )
    return Settings(home, stores, os.environ.get("PREFECT_API_URL", ""), _signing_key(home))


def missing_variables(*names: str) -> tuple[str, ...]:
    """Return which of these variables the environment doesn't hold."""
    return tuple(name for name in names if not os.environ.get(name))


def absolute_tracking_uri(uri: str) -> str:
    """Return MLflow's URI so that it names the same database or folder from everywhere."""
    scheme, separator, path = uri.partition(":///")
    if separator and scheme == "sqlite" and path and not path.startswith((":", "/")):
        return f"sqlite:///{Path(path).absolute()}"
    if uri and ":" not in uri and uri != "databricks":
        return str(Path(uri).expanduser().absolute())
    return uri


def artifact_root(home: Path, store: str) -> str:
    """Return where MLflow's own artifacts lie, where it is Handoff that says so."""
    return f"{store.rstrip('/')}/mlflow" if "://" in store else str(home / "mlflow" / "artifacts")


def _trusted_paths(home: Path) -> tuple[str, ...]:
    """Return the files and folders whose public keys are trusted."""
    entries = [
        entry for entry in os.environ.get("HANDOFF_TRUSTED_KEYS", "").split(os.pathsep) if entry
    ]
    for entry in entries:
        if not Path(entry).expanduser().exists():
            raise UsageProblem(
                "HANDOFF_TRUSTED_KEYS names a place that isn't there",
                expected="files of public keys, or folders of files *.pub", got=entry[:200],
                remedy="Fix it, or unset it to trust the keys in HANDOFF_HOME",
            )  # fmt: skip
    paths = [Path(entry).expanduser().absolute() for entry in entries]
    return tuple(map(str, paths or [trusted_folder(home)]))


def trusted_folder(home: Path) -> Path:
    """Return the folder of the public keys that are trusted where nothing else is said."""
    return home / "keys" / "trusted"


def _signing_key(home: Path) -> SigningKey:
    """Return the key that signs: the one that is named, or this home's own, made when needed."""
    public = os.environ.get("HANDOFF_SIGNING_PUBLIC_KEY", "")
    public_path = (
        Path(public).expanduser().absolute() if public else trusted_folder(home) / "own.pub"
    )
    uri = os.environ.get("HANDOFF_SIGNING_KEY", "")
    if not uri:
        return SigningKey(
            str(home / "keys" / "private" / "signing.pem"), public_path, make_missing=True
        )
    return SigningKey(uri, public_path)


def read_host_settings(
    settings: Settings, workspace: Path | None = None, *, is_worker: bool = False
) -> HostSettings:
    """Return this host's settings for the flows that run on it, with an open `workspace`.

    Raises `EnvironmentLacking` where what releases isn't installed: nothing is begun then.
    """
    from handoff.infra.extras import require_extra

    require_extra("release")
    recipes = os.environ.get("HANDOFF_RECIPES", "")
    return HostSettings(
        builds=settings.home / "builds",
        stores=settings.stores,
        key=settings.signing_key,
        compiler=compiler_name(),
        recipes=Path(recipes).expanduser().absolute() if recipes else settings.home / "recipes",
        by=author_name(),
        workspace=workspace,
        is_worker=is_worker,
        has_server=not settings.is_embedded,
    )


def read_secret(name: str) -> str:
    """Return the secret in the variable `name`; empty where there is none."""
    return os.environ.get(name, "")


def author_name() -> str:
    """Return who works here, as ledgers name them: `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def paths_kept_from_steps() -> tuple[Path, ...]:
    """Return what no child but the signing one may read: keys, the stack's passwords, a token.

    Empty where that can't be had: the folders above must be none in which children make files,
    because they couldn't read these (`infra.engine.landlock`). Where the platform's temporary
    folder is one, a compiler would fail.
    """
    uri = os.environ.get("HANDOFF_SIGNING_KEY", "")
    paths = [home_folder() / "keys" / "private", home_folder() / "stack"]
    if uri and signing_key_scheme() == "file":
        paths.append(Path(urlsplit(uri).path if ":" in uri else uri).expanduser().absolute())
    if token := read_notification_settings().token_file:
        paths.append(token)
    scratch = {Path(os.path.realpath(p)) for p in ("/tmp", os.environ.get("TMPDIR") or "/tmp")}  # noqa: S108
    return tuple(path for path in paths if not scratch & set(Path(os.path.realpath(path)).parents))


_MIN_MEMORY_BYTES = 500 * 10**6


def step_memory_bytes() -> int | None:
    """Return how much memory a step may take: `HANDOFF_STEP_MEMORY`, else what is free now.

    That is at least half of what there is: others may end before it is needed. None, for no limit,
    beside a GPU: what its driver maps was never counted with one.
    Raises `UsageProblem` for anything but a number of bytes, or of `M` or `G` of them.
    """
    text = os.environ.get("HANDOFF_STEP_MEMORY", "")
    if not text and has_gpu():
        return None
    if not text:
        total = _total_memory_bytes()
        return min(total, max(_free_memory_bytes(), total // 2))
    match = re.fullmatch(r"([0-9]{1,15})([MG]?)", text.strip())
    if match is None or int(match[1]) == 0:
        raise UsageProblem(
            "HANDOFF_STEP_MEMORY is no amount of memory", expected="such as 64G or 4000M",
            got=text[:60], remedy="Fix it, or unset it: then a step may take all that there is",
        )  # fmt: skip
    memory = int(match[1]) * {"": 1, "M": 10**6, "G": 10**9}[match[2]]
    if memory < _MIN_MEMORY_BYTES:
        raise UsageProblem(
            "HANDOFF_STEP_MEMORY is too little for any step",
            expected=f"{_MIN_MEMORY_BYTES // 10**6}M or more: torch alone takes so much",
            got=f"{memory} bytes", remedy="Write it with G or M, such as 64G, or unset it",
        )  # fmt: skip
    return memory


def wants_json_logs() -> bool:
    """Return whether `HANDOFF_LOG` asks for JSON; raise `UsageProblem` for what is neither."""
    text = os.environ.get("HANDOFF_LOG", "text")
    if text not in ("", "text", "json"):
        raise UsageProblem(
            "HANDOFF_LOG is no form of log", expected="text or json", got=text[:60],
            remedy="Fix it, or unset it",
        )  # fmt: skip
    return text == "json"


def wants_traces() -> bool:
    """Return whether OpenTelemetry's own variables name a collector and don't switch it off."""
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not is_off and any(os.environ.get(name) for name in names)


def has_gpu() -> bool:
    """Return whether there is the device of NVIDIA's driver here."""
    return Path("/dev/nvidiactl").exists()


def _total_memory_bytes() -> int:
    """Return the machine's memory, or what this container may have of it."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def _free_memory_bytes() -> int:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    match = re.search(r"^MemAvailable: +([0-9]+) kB$", text, re.MULTILINE)
    return int(match[1]) << 10 if match else 0


def require_writable_home(settings: Settings) -> None:
    """Make the home folder; raise `EnvironmentLacking` when nothing can be written there.

    Its folders are made, too, before any step starts: a step can't read what appears directly
    in the home folder while it runs (`infra.engine.landlock`).
    """
    folders = (settings.home, settings.keys, settings.private_keys, *_step_folders(settings))
    required = [(folder, "HANDOFF_HOME") for folder in folders]
    if "://" not in settings.stores.objects:
        required.append((Path(settings.stores.objects), "HANDOFF_STORE"))
    for folder, variable in required:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if folder == settings.home:
                with tempfile.TemporaryFile(dir=folder):
                    pass
        except OSError as error:
            raise EnvironmentLacking(
                f"Handoff can't write its state to {folder}",
                expected="a folder that this user may write to",
                got=error.strerror or str(error),
                remedy=f"Set {variable} to a writable folder, or fix the permissions of that one",
            ) from error


def _step_folders(settings: Settings) -> list[Path]:
    folders = [
        settings.home / "builds", trusted_folder(settings.home), settings.home / "ledgers"
    ]  # fmt: skip
    if settings.stores.artifact_root:
        folders.append(settings.home / "mlflow")
    return folders


@dataclass(frozen=True)
class ServedSettings:
    """What the environment says of the servers that `handoff up` starts; empty: nothing."""

    prefect_database: str
    mlflow_database: str
    prefect_login: str
    mlflow_password: str
    postgres_programs: str
    has_own_store: bool
    notifies: bool


def read_served_settings() -> ServedSettings:
    """Return what the environment says of the servers that `handoff up` starts."""
    return ServedSettings(
        prefect_database=os.environ.get("PREFECT_SERVER_DATABASE_CONNECTION_URL", ""),
        mlflow_database=os.environ.get("MLFLOW_BACKEND_STORE_URI", ""),
        prefect_login=os.environ.get("PREFECT_SERVER_API_AUTH_STRING", ""),
        mlflow_password=os.environ.get("MLFLOW_AUTH_ADMIN_PASSWORD", ""),
        postgres_programs=os.environ.get("HANDOFF_POSTGRES", ""),
        has_own_store=bool(os.environ.get("HANDOFF_STORE", "")),
        notifies=read_notification_settings().is_enabled,
    )


class Key(str):
    """A login that is a managed service's key or token, where others are `user:password`."""

    __slots__ = ()


def prefect_login() -> str:
    """Return `user:password`, or Prefect Cloud's key, for the server that is named; or nothing."""
    login = os.environ.get("PREFECT_API_AUTH_STRING", "")
    if not login and (key := os.environ.get("PREFECT_API_KEY", "")):
        return Key(key)
    return login


def mlflow_login() -> str | None:
    """Return `user:password`, or a token, for MLflow's server; empty for none.

    None is what MLflow reads from a file of the user's.
    """
    user = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    # As MLflow has it: a user comes before a token.
    if not user and (token := os.environ.get("MLFLOW_TRACKING_TOKEN", "")):
        return Key(token)
    if not user and Path("~/.mlflow/credentials").expanduser().exists():
        return None
    return f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}" if user else ""


@dataclass(frozen=True)
class NotificationSettings:
    """Whom the environment names to be notified; empty: nobody."""

    block: str
    forge: str
    forge_url: str
    token_file: Path | None

    @property
    def is_enabled(self) -> bool:
        """Return whether anybody is to be notified."""
        return bool(self.block or self.forge)


def read_notification_settings() -> NotificationSettings:
    """Return whom the environment names to be notified."""
    file = os.environ.get("HANDOFF_FORGE_TOKEN_FILE", "")
    return NotificationSettings(
        block=os.environ.get("HANDOFF_NOTIFY", ""),
        forge=os.environ.get("HANDOFF_FORGE", ""),
        forge_url=os.environ.get("HANDOFF_FORGE_URL", ""),
        token_file=Path(file).expanduser().absolute() if file else None,
    )


def read_forge_token(settings: NotificationSettings) -> str:
    """Return the token for commit statuses as it is now; empty where there is none.

    Raises `EnvironmentLacking` for a file that can't be read.
    """
    if settings.token_file is None:
        return read_secret("HANDOFF_FORGE_TOKEN").strip()
    try:
        return settings.token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise EnvironmentLacking(
            "the token for commit statuses can't be read",
            expected=f"a text file, {settings.token_file}",
            got=getattr(error, "strerror", None) or "no text",
            remedy="Fix HANDOFF_FORGE_TOKEN_FILE, or let this user read it",
        ) from error  # fmt: skip


def compiler_name() -> str:
    """Return the C++ compiler that Inductor will call: `$CXX`, or g++."""
    return os.environ.get("CXX", "") or "g++"
