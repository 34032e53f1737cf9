"""From what was asked for to a list of services; what can't be is refused before any starts."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.isolation import isolated_command
from handoff.flows.names import BUILD_POOL, CONTROL_POOL
from handoff.infra.engine.environments import QUIET
from handoff.infra.servers import LOOPBACK, require_free_port
from handoff.infra.settings import ServedSettings, Settings, artifact_root
from handoff.infra.stack.arrivals import resolve_watched, resolve_webhook, services_of_arrivals
from handoff.infra.stack.layout import Choices, Stack, StackLayout, is_wildcard, reachable_host
from handoff.infra.stack.logins import Logins, mlflow_login_environment
from handoff.infra.stack.postgres import (
    database_url,
    find_programs,
    mlflow_address,
    password_environment,
    postgres_service,
    read_address,
)
from handoff.infra.stack.supervision import Service

_CONTROL_LIMIT = 8
BUCKET = "handoff"
# Runs that ended are removed after 90 days, or after what
# PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD says: most of them only look for crashed ones.
# What was released is in the store.
RETENTION = {"PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs"}
_LEASES = "prefect.server.concurrency.lease_storage.filesystem"


@dataclass(frozen=True)
class Plan:
    """A stack, its services in the order of their start, and what its clients need to know."""

    stack: Stack
    services: Sequence[Service]
    # For the commands that follow, and the workers; it holds passwords.
    client: dict[str, str]
    programs: Path | None


def resolve_stack(choices: Choices, settings: Settings, served: ServedSettings) -> Stack:
    """Return the stack that is asked for, with defaults where nothing was."""
    is_own = not choices.sqlite and not served.prefect_database
    if (
        choices.s3
        and served.has_own_store
        and not settings.stores.objects.startswith(_trial_store())
    ):
        raise UsageProblem(
            "An S3 endpoint for trying out has no use here", expected="--s3 without HANDOFF_STORE",
            got="both", remedy="Leave one of them out",
        )  # fmt: skip
    cores = len(os.sched_getaffinity(0))
    builds = 1 if choices.builds is None else choices.builds
    if builds > cores:
        raise UsageProblem(
            "More builds at once than cores", expected=f"at most {cores}", got=str(builds),
            remedy="Each compiles on cores of its own: name fewer",
        )  # fmt: skip
    return Stack(
        host=choices.host or "127.0.0.1",
        prefect_port=choices.prefect_port or 4200,
        mlflow_port=choices.mlflow_port or 5000,
        s3_port=choices.s3_port or 9000,
        builds=builds,
        s3=bool(choices.s3),
        sqlite=bool(choices.sqlite),
        store=_trial_store() if choices.s3 else settings.stores.objects,
        database="PostgreSQL" if is_own else "SQLite" if choices.sqlite else "PostgreSQL, named",
        webhook=resolve_webhook(choices),
        webhook_port=choices.webhook_port or 8787,
        watch=resolve_watched(choices),
        metrics=bool(choices.metrics),
        metrics_port=choices.metrics_port or 9464,
    )


def _trial_store() -> str:
    return f"s3://{BUCKET}/releases"


def make_plan(stack: Stack, layout: StackLayout, served: ServedSettings, logins: Logins) -> Plan:
    """Return the services of a stack; raise where something that they need is missing."""
    programs = None
    services: list[Service] = []
    if stack.database == "PostgreSQL":
        programs = find_programs(served.postgres_programs)
        services.append(postgres_service(layout, programs))
    if stack.s3:
        services.append(_s3(stack))
    client = {
        "PREFECT_API_URL": stack.prefect_api,
        "MLFLOW_TRACKING_URI": stack.mlflow,
        "HANDOFF_HOME": str(layout.home),
        "HANDOFF_STORE": stack.store,
        **logins.client,
        **(_s3_client(stack) if stack.s3 else {}),
    }
    services += [
        _prefect(stack, layout, served, logins), _mlflow(stack, layout, served, logins),
        # One for each pool, however much it has at once: each that polls costs the server
        # something.
        _worker("control", CONTROL_POOL, client, "--limit", str(_CONTROL_LIMIT)),
        _worker("build", BUILD_POOL, client, "--limit", str(stack.builds)),
        *([_notifier(client)] if served.notifies else []),
        *services_of_arrivals(stack, client),
        *([_metrics(stack, client)] if stack.metrics else []),
    ]  # fmt: skip
    return Plan(stack, services, client, programs)


def require_free_ports(stack: Stack) -> None:
    """Raise `UsageProblem` for the first port that something else listens on."""
    ports = [
        ("--prefect-port", stack.host, stack.prefect_port, "Prefect"),
        ("--mlflow-port", stack.host, stack.mlflow_port, "MLflow"),
        *([("--s3-port", "127.0.0.1", stack.s3_port, "the S3 endpoint")] if stack.s3 else []),
        *(
            [("--webhook-port", "127.0.0.1", stack.webhook_port, "the webhook")]
            if stack.webhook
            else []
        ),
        *(
            [("--metrics-port", "127.0.0.1", stack.metrics_port, "the metrics")]
            if stack.metrics
            else []
        ),
    ]
    for option, host, port, name in ports:
        require_free_port(host, port, name, option)


def _prefect(stack: Stack, layout: StackLayout, served: ServedSettings, logins: Logins) -> Service:
    environment = {
        **QUIET, **logins.prefect,
        "PREFECT_HOME": str(layout.prefect_home),
        "PREFECT_API_URL": stack.prefect_api,
        # With the default one a restart of the server leaks every slot that is held, for ever.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": _LEASES,
        **RETENTION,
    }  # fmt: skip
    if stack.metrics:
        environment["PREFECT_SERVER_METRICS_ENABLED"] = "true"
    if stack.host not in LOOPBACK:
        # Where browsers elsewhere find the API.
        name = socket.gethostname() if is_wildcard(stack.host) else reachable_host(stack.host)
        environment["PREFECT_UI_API_URL"] = f"http://{name}:{stack.prefect_port}/api"
    if stack.database == "PostgreSQL":
        database = database_url(layout, "postgresql+asyncpg", "prefect")
        environment |= password_environment(layout)
    elif stack.sqlite:
        database = f"sqlite+aiosqlite:///{layout.prefect_home / 'prefect.db'}"
    else:
        database = read_address(
            served.prefect_database, "PREFECT_SERVER_DATABASE_CONNECTION_URL"
        ).render_as_string(hide_password=False)
    environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = database
    return Service(
        "prefect",
        tuple(isolated_command(
            "prefect", "server", "start",
            "--host", stack.host, "--port", str(stack.prefect_port),
        )),
        environment, keeps="prefect", stage=10, address=stack.prefect_api.removesuffix("/api"),
    )  # fmt: skip


def _mlflow(stack: Stack, layout: StackLayout, served: ServedSettings, logins: Logins) -> Service:
    environment = {
        **QUIET, **logins.mlflow, **(_s3_client(stack) if stack.s3 else {}),
        # Seven processes more, which nothing here uses.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ARTIFACTS_DESTINATION": artifact_root(layout.home, stack.store),
    }  # fmt: skip
    if stack.database == "PostgreSQL":
        environment |= password_environment(layout)
        database = database_url(layout, "postgresql+psycopg2", "mlflow")
    elif stack.sqlite:
        database = f"sqlite:///{layout.home / 'mlflow' / 'mlflow.db'}"
    else:
        url = read_address(served.prefect_database, "PREFECT_SERVER_DATABASE_CONNECTION_URL")
        database = mlflow_address(url, served.mlflow_database)
    environment["MLFLOW_BACKEND_STORE_URI"] = database
    if logins.mlflow:
        environment |= mlflow_login_environment(layout, stack)
    return Service(
        "mlflow",
        tuple(isolated_command(
            "mlflow", "server", "--host", stack.host,
            "--port", str(stack.mlflow_port), "--workers", "1",
            *(["--app-name", "basic-auth"] if logins.mlflow else []),
            *(["--expose-prometheus", str(layout.mlflow_metrics)] if stack.metrics else []),
        )),
        environment, keeps="stores", stage=10, is_awaited=False, address=stack.mlflow,
    )  # fmt: skip


def _s3(stack: Stack) -> Service:
    if importlib.util.find_spec("moto") is None:
        raise EnvironmentLacking(
            "There is no S3 endpoint for trying out", expected="the package moto", got="none",
            remedy="Install moto[server], or leave --s3 out: a folder in the home is a store, too",
        )  # fmt: skip
    return Service(
        "s3",
        tuple(isolated_command(
            "moto.server", "--host", "127.0.0.1",
            "--port", str(stack.s3_port),
        )),
        stage=5, address=stack.s3_endpoint,
    )  # fmt: skip


def _s3_client(stack: Stack) -> dict[str, str]:
    """Return what reaches the endpoint for trying out, which asks for no key in truth."""
    return {
        "AWS_ENDPOINT_URL": stack.s3_endpoint,
        "AWS_ACCESS_KEY_ID": "handoff",
        "AWS_SECRET_ACCESS_KEY": "handoff",  # moto lets everybody in
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def _worker(name: str, pool: str, client: dict[str, str], *options: str) -> Service:
    worker = f"{name}@{socket.gethostname()}"
    return Service(
        name,
        tuple(isolated_command(
            "handoff", "worker", "--pool", pool, "--name", worker,
            *options,
        )),
        client, keeps="all", stage=20, stop_limit_s=30, ends_leftovers=False, pool=pool,
        worker=worker,
    )  # fmt: skip


def _notifier(client: dict[str, str]) -> Service:
    # Stopped first: that workers leave with the stack is nothing to report.
    return Service(
        "tell", tuple(isolated_command("handoff", "tell")), client, keeps="token", stage=30,
    )  # fmt: skip


def _metrics(stack: Stack, client: dict[str, str]) -> Service:
    command = isolated_command("handoff", "metrics", "--port", str(stack.metrics_port))
    return Service(
        "metrics", tuple(command), client, keeps="all", stage=30,
        address=f"{stack.metrics_address}/metrics",
    )  # fmt: skip


def require_loopback_or_logins(stack: Stack, logins: Logins) -> None:
    """Raise `UsageProblem` for servers that anybody on the network could use."""
    if stack.host in LOOPBACK or (logins.prefect and logins.mlflow):
        return
    missing = [
        name for name, login in (
            ("PREFECT_SERVER_API_AUTH_STRING", logins.prefect),
            ("MLFLOW_AUTH_ADMIN_PASSWORD", logins.mlflow),
        ) if not login
    ]  # fmt: skip
    raise UsageProblem(
        "Servers that ask for no login are not shown to the network",
        expected="a loopback address, or logins for Prefect and MLflow",
        got=f"--host {stack.host[:60]}, and no {' and no '.join(missing)}",
        remedy="Set PREFECT_SERVER_API_AUTH_STRING (user:password) and MLFLOW_AUTH_ADMIN_PASSWORD, "
        "or leave --host out and reach the machine by an SSH tunnel",
    )
