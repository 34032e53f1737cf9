"""What a stack was set up with, kept beside it, so that it comes up the same from any shell.

The first `handoff up` keeps the options and the settings of its shell; `handoff down` leaves them.
A later one takes them where its own shell says nothing, and where that says something else, it asks
or refuses: a store that silently becomes another one loses a team's releases from sight. Passwords
and access keys are among what is kept, in a file of the stack's closed folder, which no step may
read; temporary credentials expire, and are not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.files.writing import write_atomically
from handoff.artifacts.printable import one_line
from handoff.infra.engine.environments import with_absolute_paths
from handoff.infra.home import absolute_path
from handoff.infra.stack.layout import Choices, StackLayout, with_tuples

Use = Literal["kept", "shell"]

_SETTINGS = (
    "HANDOFF_STORE", "HANDOFF_TRUSTED_KEYS", "HANDOFF_SIGNING_KEY", "HANDOFF_SIGNING_PUBLIC_KEY",
    "HANDOFF_RECIPES", "HANDOFF_STEP_TIME", "HANDOFF_STEP_MEMORY", "HANDOFF_POSTGRES",
    "HANDOFF_LOG", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD",
    "CXX", "TZ",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL", "MLFLOW_BACKEND_STORE_URI",
    "PREFECT_SERVER_API_AUTH_STRING", "MLFLOW_AUTH_ADMIN_PASSWORD", "PREFECT_UI_URL",
    "HANDOFF_NOTIFY", "HANDOFF_FORGE", "HANDOFF_FORGE_URL", "HANDOFF_FORGE_TOKEN",
    "HANDOFF_FORGE_TOKEN_FILE",
)  # fmt: skip
# What reaches a store in S3, or a key of its KMS.
_AWS = "AWS_"
_TEMPORARY = "AWS_SESSION_TOKEN"
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", _TEMPORARY)
_SECRET = ("PASSWORD", "AUTH_STRING", "SECRET", "TOKEN", "ACCESS_KEY_ID", "OTLP_HEADERS")


@dataclass(frozen=True)
class Setup:
    """The options that a stack was set up with, and the settings of that shell, by variable."""

    choices: Choices
    settings: Mapping[str, str] = field(default_factory=dict)


def read_setup(layout: StackLayout) -> Setup | None:
    """Return what the home's stack was set up with; None where none was.

    Raises `EnvironmentLacking` for a file that can't be read.
    """
    try:
        plain = json.loads(layout.setup.read_text("utf-8"))
        names = {option.name for option in fields(Choices)}
        choices = {name: value for name, value in plain["choices"].items() if name in names}
        settings = {str(name): str(value) for name, value in plain["settings"].items()}
        return Setup(Choices(**with_tuples(choices)), settings)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnvironmentLacking(
            "what the stack was set up with can't be read", expected=f"JSON in {layout.setup}",
            got=one_line(str(error))[:200],
            remedy="Fix that file, or remove it and set the stack up again with all its settings",
        ) from error  # fmt: skip


def write_setup(layout: StackLayout, setup: Setup) -> None:
    """Keep what a stack is set up with; only its owner can read it."""
    plain = {"choices": asdict(setup.choices), "settings": dict(setup.settings)}
    write_atomically(layout.setup, json.dumps(plain, indent=2), mode=0o600, is_synced=True)


def settings_of(environment: Mapping[str, str], *, tries_out: bool) -> dict[str, str]:
    """Return what of a shell's settings makes a stack what it is.

    One that brings an S3 endpoint for trying out has its own store, and its own access to it.
    """
    environment = {**environment, **with_absolute_paths(environment)}
    settings = {name: environment[name] for name in _SETTINGS if environment.get(name)}
    if "://" not in (store := settings.get("HANDOFF_STORE", "://")):
        settings["HANDOFF_STORE"] = str(absolute_path(Path(store).expanduser()))
    if tries_out:
        settings.pop("HANDOFF_STORE", None)
    elif _uses_aws(settings):
        expires = bool(environment.get(_TEMPORARY))
        settings |= {
            name: value
            for name, value in environment.items()
            if name.startswith(_AWS) and value and not (expires and name in _KEYS)
        }
    return settings


def _uses_aws(settings: Mapping[str, str]) -> bool:
    store, key = settings.get("HANDOFF_STORE", ""), settings.get("HANDOFF_SIGNING_KEY", "")
    return store.startswith("s3://") or key.startswith("awskms:")


def resolve_setup(choices: Choices, saved: Setup | None, use: Use | None) -> Setup:
    """Return what to bring a stack up with, and let this process see its settings.

    Options that are given go before those that were kept. Raises `UsageProblem` where the shell's
    settings differ from those that were kept, unless it is said which ones to `use`.
    """
    merged = choices
    if saved is not None:
        overrides = {name: value for name, value in asdict(choices).items() if value is not None}
        merged = replace(saved.choices, **overrides)
    shell = settings_of(os.environ, tries_out=bool(merged.s3))
    if saved is None or use == "shell":
        return Setup(merged, shell)
    settings = dict(saved.settings)
    if merged.s3:
        settings = {name: value for name, value in settings.items() if name != "HANDOFF_STORE"}
    changes = differences(settings, shell)
    if changes and use != "kept":
        raise UsageProblem(
            "this shell's settings are not those that the stack was set up with",
            expected="the same, or none", got="; ".join(changes)[:1000],
            remedy="Run 'handoff up --use kept' for what it was set up with, or "
            "'handoff up --use shell' to set it up with this shell's from now on",
        )  # fmt: skip
    for name in shell.keys() - settings.keys():
        del os.environ[name]
    os.environ.update(settings)
    return Setup(merged, settings)


def differences(saved: Mapping[str, str], shell: Mapping[str, str]) -> list[str]:
    """Return a phrase for each setting that a shell has and a stack was not set up with so.

    What a shell doesn't say is no difference. Secrets are named, and not shown.
    """
    phrases = []
    for name in sorted(shell):
        if shell[name] == saved.get(name):
            continue
        if is_secret(name, shell[name]) or is_secret(name, saved.get(name, "")):
            phrases.append(f"another {name}" if name in saved else f"{name}, where there was none")
        else:
            phrases.append(f"{name} is {shell[name]}, and was {saved.get(name, 'not set')}")
    return [one_line(text)[:200] for text in phrases]


def is_secret(name: str, value: str) -> bool:
    """Return whether a setting may not be shown: by its name, or a password in an address."""
    if any(word in name for word in _SECRET):
        return True
    return "://" in value and urlsplit(value).password is not None


def describe_setup(setup: Setup) -> str:
    """Return in words what was kept and is used again, without its secrets; '' for nothing."""
    parts = [
        f"{name.removeprefix('HANDOFF_').lower()} {value}"
        for name, value in sorted(setup.settings.items())
        if name in ("HANDOFF_STORE", "HANDOFF_SIGNING_KEY", "HANDOFF_RECIPES", "TZ")
        and not is_secret(name, value)
    ]
    more = len(setup.settings) - len(parts)
    if more:
        parts.append(f"{more} more setting{'s' * (more > 1)}")
    options = asdict(setup.choices)
    parts += [
        f"--{name.replace('_', '-')} {item}"
        for name, value in options.items()
        if value
        for item in (value if isinstance(value, tuple) else (value,))
    ]
    return one_line(", ".join(parts))
