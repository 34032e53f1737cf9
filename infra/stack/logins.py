"""Logins of the served stack: one shared one for Prefect, MLflow's own users for MLflow."""

from __future__ import annotations

import importlib.util
import secrets
import socket
from dataclasses import dataclass

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.files.writing import write_atomically
from handoff.infra.servers import LOOPBACK
from handoff.infra.settings import ServedSettings
from handoff.infra.stack.layout import Stack, StackLayout
from handoff.infra.stack.postgres import database_url

_ADMIN = "admin"
# MLflow refuses a shorter one.
_SHORTEST = 12


@dataclass(frozen=True)
class Logins:
    """What the servers and their clients are given; an empty mapping: no login."""

    prefect: dict[str, str]
    mlflow: dict[str, str]
    client: dict[str, str]


def read_logins(served: ServedSettings) -> Logins:
    """Return the logins that the environment names; raise where one can't be had."""
    prefect, mlflow, client = {}, {}, {}
    if served.prefect_login:
        user, separator, password = served.prefect_login.partition(":")
        if not (user and separator and password):
            raise UsageProblem(
                "PREFECT_SERVER_API_AUTH_STRING is no login", expected="user:password",
                got="another form", remedy="Write both, with a colon between them",
            )  # fmt: skip
        prefect = {"PREFECT_SERVER_API_AUTH_STRING": served.prefect_login}
        # The server asks for it under one name, and those who call it give it under another.
        client["PREFECT_API_AUTH_STRING"] = served.prefect_login
    if served.mlflow_password:
        _require_mlflow_login(served)
        mlflow = {
            "MLFLOW_AUTH_ADMIN_USERNAME": _ADMIN,
            "MLFLOW_AUTH_ADMIN_PASSWORD": served.mlflow_password,
        }
        client["MLFLOW_TRACKING_USERNAME"] = _ADMIN
        client["MLFLOW_TRACKING_PASSWORD"] = served.mlflow_password
    return Logins(prefect, mlflow, client)


def _require_mlflow_login(served: ServedSettings) -> None:
    if len(served.mlflow_password) < _SHORTEST:
        raise UsageProblem(
            "MLFLOW_AUTH_ADMIN_PASSWORD is too short", expected=f"at least {_SHORTEST} characters",
            got=str(len(served.mlflow_password)), remedy="Choose a longer one",
        )  # fmt: skip
    if importlib.util.find_spec("flask_wtf") is None:
        raise EnvironmentLacking(
            "MLflow can't ask for a login here", expected="the package Flask-WTF", got="none",
            remedy="Install mlflow[auth] in Handoff's environment, or unset "
            "MLFLOW_AUTH_ADMIN_PASSWORD",
        )  # fmt: skip


def mlflow_login_environment(layout: StackLayout, stack: Stack) -> dict[str, str]:
    """Write the settings of MLflow's basic authentication; return what names them."""
    database = (
        database_url(layout, "postgresql+psycopg2", "mlflow_auth")
        if stack.database == "PostgreSQL"
        else f"sqlite:///{layout.folder / 'mlflow_users.db'}"
    )
    file, key = layout.folder / "mlflow_auth.ini", layout.folder / "mlflow_sessions.key"
    write_atomically(
        file,
        "[mlflow]\ndefault_permission = READ\n"
        f"database_uri = {database}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n",
    )
    if not key.exists():
        write_atomically(key, secrets.token_hex(32))
    environment = {
        "MLFLOW_AUTH_CONFIG_PATH": str(file),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": key.read_text("utf-8"),
    }
    if stack.host not in LOOPBACK:
        # MLflow answers to no other name, against DNS rebinding.
        names = {stack.host, socket.gethostname(), socket.getfqdn(), *LOOPBACK}
        hosts = ",".join(f"{name}:{stack.mlflow_port}" for name in sorted(names))
        environment["MLFLOW_SERVER_ALLOWED_HOSTS"] = hosts
    return environment
