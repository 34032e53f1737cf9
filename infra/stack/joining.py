"""`handoff worker --join URL`: what a second machine asks a stack for, and what it asks a person.

The stack's settings come from its Prefect server (`infra.prefect.stack_settings`), which holds no
secret. Whose signatures count is not taken from there unseen: a person compares the keys' ids with
those that `handoff keys show` prints where the key signs, as with the keys of SSH's hosts. Where a
variable is set already, that counts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.files.writing import write_atomically
from handoff.artifacts.release.signing import key_files, public_key_of, read_trust
from handoff.infra.home import home_folder
from handoff.infra.prefect.stack_settings import (
    StackSettings,
    read_stack_settings,
    write_stack_settings,
)
from handoff.infra.servers import LOOPBACK, get_status, mlflow_probe_url, prefect_status
from handoff.infra.settings import Settings, mlflow_login, prefect_login, read_settings
from handoff.infra.stack.setup import is_secret
from handoff.infra.terminal.output import ask, ask_secret, echo, on_terminal

# What is the same on each machine of a stack, and nobody's secret.
_SHARED = (
    "HANDOFF_STORE", "MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
    "AWS_DEFAULT_REGION", "AWS_REGION", "HANDOFF_STEP_TIME", "HANDOFF_LOG",
    "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)  # fmt: skip
_STORES = ("HANDOFF_STORE", "MLFLOW_TRACKING_URI")
_ADDRESSES = ("MLFLOW_TRACKING_URI", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_SHORTEST_ID = 12


def share_settings(settings: Settings, login: str, environment: Mapping[str, str]) -> None:
    """Let machines that join have this stack's settings, and the public keys that it trusts.

    `environment` is the stack's. One that doesn't name both stores is somebody's shell, whose own
    are nobody else's: what the server holds stays. Raises `HandoffError` where the Prefect server
    can't be asked.
    """
    if not all(environment.get(name) for name in _STORES):
        return
    shared_settings = {
        name: value
        for name in _SHARED
        if (value := environment.get(name)) and not is_secret(name, value)
    }
    uri = settings.signing_key.uri
    if ":" in uri.removeprefix("file:"):
        # A key service's address, and not a file of this machine's.
        shared_settings["HANDOFF_SIGNING_KEY"] = uri
    files = key_files(settings.stores.trusted, may_lack=True)
    trusted = tuple(file.read_text("utf-8") for file in files)
    public = settings.signing_key.public
    signs = public.read_text("utf-8") if public.exists() else ""
    write_stack_settings(
        settings.prefect_api, login, StackSettings(shared_settings, trusted, signs)
    )


def join(url: str, trusted: Sequence[str], *, registers: bool) -> None:
    """Let this process have the settings of the stack whose Prefect server is at `url`.

    What the environment says already stays. A worker that `registers` has to trust the stack's
    keys: those that `trusted` names by their ids, or that a person at the terminal agrees to.
    Secrets are asked for at a terminal. Raises `UsageProblem` for what nobody was there to say.
    """
    os.environ["PREFECT_API_URL"] = api = _api_of(url)
    _ask_prefect_login(api)
    shared = read_stack_settings(api, prefect_login())
    host = urlsplit(api).hostname or ""
    adopted = {
        name: _rewrite_loopback(name, value, host)
        for name, value in shared.settings.items()
        if name in (*_SHARED, "HANDOFF_SIGNING_KEY") and not os.environ.get(name)
    }
    _require_folder(adopted.get("HANDOFF_STORE", ""))
    os.environ.update(adopted)
    for name, value in sorted(adopted.items()):
        echo(f"from the stack: {name} is {value}", err=True)
    if registers:
        _trust_keys(shared, trusted, host)
        _ask_mlflow_login()


def _api_of(url: str) -> str:
    """Return the address of Prefect's API, of which people know the server's."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
        raise UsageProblem(
            "--join names no Prefect server",
            expected="its address, without a login, such as http://stack.example.org:4200",
            got=url[:100] if not parts.password else "one with a password",
            remedy="Write that; a login is read from PREFECT_API_AUTH_STRING",
        )  # fmt: skip
    plain = url.rstrip("/")
    return plain if parts.path.rstrip("/").endswith("/api") else f"{plain}/api"


def _ask_prefect_login(api: str) -> None:
    if prefect_status(api, prefect_login()) not in (401, 403) or not on_terminal():
        return
    os.environ["PREFECT_API_AUTH_STRING"] = ask_secret("The Prefect server's login, user:password")


def _ask_mlflow_login() -> None:
    address = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not address.startswith("http") or mlflow_login() != "" or not on_terminal():
        return
    if get_status(mlflow_probe_url(address)) in (401, 403):
        os.environ["MLFLOW_TRACKING_USERNAME"] = ask("MLflow's user", "admin")
        os.environ["MLFLOW_TRACKING_PASSWORD"] = ask_secret("MLflow's password")


def _rewrite_loopback(name: str, value: str, host: str) -> str:
    """Return an address of the stack's machine as others reach it: by the name that we use."""
    if name not in _ADDRESSES or urlsplit(value).hostname not in LOOPBACK or host in LOOPBACK:
        return value
    if name.startswith("AWS_"):
        raise EnvironmentLacking(
            "the stack's store is for trying out, and on its machine alone",
            expected="a store that both machines reach", got=f"{name} is {value} there",
            remedy="Set the stack up with a bucket or a shared folder (HANDOFF_STORE), and join "
            "it again",
        )  # fmt: skip
    parts = urlsplit(value)
    netloc = f"[{host}]" if ":" in host else host
    port = f":{parts.port}" if parts.port else ""
    return parts._replace(netloc=f"{netloc}{port}").geturl()


def _require_folder(store: str) -> None:
    """Raise where the store is a folder that isn't here: one that is made here would be another."""
    if store and "://" not in store and not Path(store).is_dir():
        raise EnvironmentLacking(
            "the stack's store is a folder that this machine doesn't have",
            expected=f"{store}, mounted from where the stack has it", got="no such folder",
            remedy="Mount it under the same path, or let the stack's store be a bucket",
        )  # fmt: skip


def _trust_keys(shared: StackSettings, requested: Sequence[str], host: str) -> None:
    """Trust the keys of the stack's that were named or agreed to, from files of this home's."""
    keys = {public_key_of(pem.encode(), "a key").keyid: pem for pem in shared.trusted}
    signs = public_key_of(shared.signs.encode(), "a key").keyid if shared.signs else ""
    if os.environ.get("HANDOFF_TRUSTED_KEYS"):
        known = {key.keyid for key in read_trust(read_settings().stores.trusted).keys}
        accepted = [key_id for key_id in keys if key_id in known]
    else:
        accepted = _select_keys(tuple(keys), requested, host)
    folder = home_folder() / "keys" / "joined"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in folder.glob("*.pub"):
        old.unlink()
    for key_id in accepted:
        write_atomically(folder / f"{key_id}.pub", keys[key_id])
    os.environ.setdefault("HANDOFF_TRUSTED_KEYS", str(folder))
    if signs in accepted:
        os.environ.setdefault("HANDOFF_SIGNING_PUBLIC_KEY", str(folder / f"{signs}.pub"))


def _select_keys(keys: Sequence[str], requested: Sequence[str], host: str) -> list[str]:
    """Return the ids of the keys that `requested` begins, or that a person says yes to."""
    if not keys:
        raise EnvironmentLacking(
            f"the stack at {host} tells no public key", expected="one that it trusts", got="none",
            remedy="Run 'handoff up' there again, or set HANDOFF_TRUSTED_KEYS",
        )  # fmt: skip
    offered = ", ".join(keys)
    if not requested and on_terminal():
        echo(f"The stack at {host} says that it trusts: {offered}", err=True)
        question = "Is that what 'handoff keys show' prints where the key signs? yes or no"
        if ask(question, "no").strip(" '") == "yes":
            return list(keys)
    selected = [key_id for key_id in keys if any(_is_prefix(key_id, name) for name in requested)]
    unmatched = [name for name in requested if not any(_is_prefix(key_id, name) for key_id in keys)]
    if unmatched or not selected:
        raise UsageProblem(
            "nobody has said which of the stack's keys to trust",
            expected=f"--trust with ids of {_SHORTEST_ID} digits or more, as 'handoff keys show' "
            "prints them where the key signs",
            got=f"{', '.join(unmatched)[:200] or 'no --trust'}; the stack at {host} has {offered}",
            remedy=f"Compare, and if they are the same: --trust {keys[0]}",
        )  # fmt: skip
    return selected


def _is_prefix(key: str, name: str) -> bool:
    return len(name) >= _SHORTEST_ID and key.startswith(name.lower())
