"""`handoff up`: start the served stack, or what of it is down, and wait until it is healthy."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.files.writing import write_atomically
from handoff.infra.engine.environments import prepare_prefect, supervisor_environment
from handoff.infra.engine.signing_key import ask_signer, will_be_created
from handoff.infra.home import home_folder
from handoff.infra.prefect.pools import make_pools
from handoff.infra.servers import LOOPBACK
from handoff.infra.settings import (
    Settings,
    read_served_settings,
    read_settings,
    require_writable_home,
)
from handoff.infra.stack import postgres
from handoff.infra.stack.arrivals import resolve_watched, resolve_webhook
from handoff.infra.stack.down import end_leftovers
from handoff.infra.stack.joining import share_settings
from handoff.infra.stack.layout import Choices, Stack, StackLayout
from handoff.infra.stack.logins import read_logins
from handoff.infra.stack.plan import (
    BUCKET,
    make_plan,
    require_free_ports,
    require_loopback_or_logins,
    resolve_stack,
)
from handoff.infra.stack.setup import (
    Setup,
    Use,
    describe_setup,
    differences,
    read_setup,
    resolve_setup,
    settings_of,
    write_setup,
)
from handoff.infra.stack.status import examine_stack, is_healthy, print_stack, wait_until_healthy
from handoff.infra.stack.supervision import Service, Supervision, read_service
from handoff.infra.terminal.output import ask, echo, on_terminal


def bring_up(choices: Choices, *, use: Use | None, print_environment: bool, as_json: bool) -> None:
    """Start what is down, wait until all is healthy, and print where everything is.

    It comes up as it was set up; `use` says whose settings count where this shell's are others.
    """
    layout = StackLayout(home_folder())
    saved = read_setup(layout)
    use = use or (_ask_use(choices, saved) if saved and on_terminal() else None)
    setup = resolve_setup(choices, saved, use)
    settings = read_settings()
    # As it is before this process keeps Prefect quiet: what servers and workers say is wanted.
    environment = supervisor_environment(settings.home)
    prepare_prefect(settings)
    require_writable_home(settings)
    with layout.locked():
        supervision = Supervision(layout)
        stack = layout.read_stack() if supervision.is_running() else None
        if stack:
            _require_same(setup.choices, stack)
            _require_running(use, settings, stack)
        else:
            if saved and (again := describe_setup(setup)):
                echo(f"As it was set up: {again}", err=True)
            stack = _launch(setup.choices, layout, supervision, environment)
            store = {} if stack.s3 else {"HANDOFF_STORE": stack.store}
            write_setup(layout, replace(setup, settings={**setup.settings, **store}))
        started = _bring_services_up(layout, stack, supervision)
        _make_key(settings)
        _publish_settings(settings, stack)
    if print_environment:
        echo(layout.environment.read_text("utf-8"), nl=False)
        return
    if not as_json:
        echo(_summarize(started, len(supervision.states())))
    print_stack(examine_stack(layout, supervision), layout, as_json=as_json)


def _make_key(settings: Settings) -> None:
    """Make the stack's own key before its first release does: machines that join ask for it."""
    if will_be_created(settings.signing_key):
        signer = ask_signer(settings.signing_key, makes=True)
        echo(f"Made the key that signs here: {signer.key_id[:12]}", err=True)


def _publish_settings(settings: Settings, stack: Stack) -> None:
    """Keep on the stack's own Prefect server what machines that join it need."""
    login = read_served_settings().prefect_login
    stores = {"HANDOFF_STORE": stack.store, "MLFLOW_TRACKING_URI": stack.mlflow}
    endpoint = {"AWS_ENDPOINT_URL": stack.s3_endpoint} if stack.s3 else {}
    environment = {**os.environ, **stores, **endpoint}
    share_settings(replace(settings, prefect_api=stack.prefect_api), login, environment)


def _summarize(started: Sequence[str], services: int) -> str:
    if not started:
        return "The stack runs already."
    if len(started) == services:
        return "The stack runs."
    return f"The stack ran already, but for {', '.join(started)}: started."


def _ask_use(choices: Choices, saved: Setup) -> Use | None:
    """Return which settings count, as the person at the terminal says; None where they agree."""
    shell = settings_of(os.environ, tries_out=bool(choices.s3 or saved.choices.s3))
    changes = differences(saved.settings, shell)
    if not changes:
        return None
    echo("This shell's settings are not those that the stack was set up with:", err=True)
    for change in changes:
        echo(f"  {change}", err=True)
    while True:
        answer = ask("Use what was 'kept', or this 'shell's from now on?", "kept").strip(" '")
        if answer in ("kept", "shell"):
            return "kept" if answer == "kept" else "shell"


def _require_running(use: Use | None, settings: Settings, stack: Stack) -> None:
    """Raise `UsageProblem` for settings that a running stack was not started with."""
    if use == "shell" or not (stack.s3 or settings.stores.objects == stack.store):
        raise UsageProblem(
            "The stack runs already, with the settings of its start",
            expected=f"the store {stack.store}, and the rest as it was",
            got="--use shell" if use == "shell" else settings.stores.objects,
            remedy="Run 'handoff down' first, which keeps all data",
        )  # fmt: skip


def _require_same(choices: Choices, stack: Stack) -> None:
    """Raise `UsageProblem` for a choice that the running stack wasn't started with."""
    running = asdict(stack)
    requested = asdict(
        replace(choices, webhook=resolve_webhook(choices), watch=resolve_watched(choices))
    )
    for name, value in requested.items():
        if value is not None and value != running[name]:
            raise UsageProblem(
                "The stack runs already, with other options",
                expected=f"--{name.replace('_', '-')} {running[name]}", got=str(value),
                remedy="Run 'handoff down' first, which keeps all data",
            )  # fmt: skip


def _launch(
    choices: Choices, layout: StackLayout, supervision: Supervision, environment: Mapping[str, str]
) -> Stack:
    """Check everything that can be checked, then start the supervisor; no service runs yet."""
    served = read_served_settings()
    logins = read_logins(served)
    stack = resolve_stack(choices, read_settings(), served)
    require_loopback_or_logins(stack, logins)
    layout.make()
    plan = make_plan(stack, layout, served, logins)
    for name in end_leftovers(layout):
        echo(f"ended what was left of {name}", err=True)
    require_free_ports(stack)
    if plan.programs:
        postgres.prepare_cluster(layout, plan.programs)
    elif not stack.sqlite:
        url = postgres.read_address(
            served.prefect_database, "PREFECT_SERVER_DATABASE_CONNECTION_URL"
        )
        asyncio.run(postgres.require_database(url, makes_mlflow=not served.mlflow_database))
    _print_limitations(stack)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in plan.client.items()]
    write_atomically(layout.environment, "".join(lines))
    layout.write_stack(stack)
    supervision.launch(plan.services, environment)
    return stack


def _print_limitations(stack: Stack) -> None:
    if stack.sqlite:
        echo(
            "handoff: SQLite is for trying out: with it, Prefect's automations fire late, or more "
            "than once", err=True,
        )  # fmt: skip
    if stack.host not in LOOPBACK:
        echo(
            "handoff: passwords cross the network as plain text: put a proxy with TLS in front, or "
            "trust this network", err=True,
        )  # fmt: skip
    if stack.s3:
        echo(
            "handoff: the S3 endpoint keeps everything in memory: what is stored there is gone "
            "after 'handoff down'", err=True,
        )  # fmt: skip


def _bring_services_up(layout: StackLayout, stack: Stack, supervision: Supervision) -> list[str]:
    """Start stage after stage, each when what it needs is healthy; return what was started."""
    services = [read_service(file) for file in layout.services.glob("*.json")]
    login = next((s.environment.get("PREFECT_API_AUTH_STRING", "") for s in services if s.pool), "")
    started = []
    for stage in sorted({service.stage for service in services}):
        staged = [service for service in services if service.stage == stage]
        if any(service.pool for service in staged):
            make_pools(stack.prefect_api, login, sorted({service.pool for service in staged}))
        started += [service.name for service in staged if supervision.start(service.name)]
        for service in staged:
            if service.is_awaited:
                _wait(service, stack, layout, supervision, login)
                _prepare_next_stage(service, stack, layout)
    for service in services:
        if not service.is_awaited:
            _wait(service, stack, layout, supervision, login)
    return started


def _wait(
    service: Service, stack: Stack, layout: StackLayout, supervision: Supervision, login: str
) -> None:
    wait_until_healthy(
        service, supervision, layout,
        lambda started: is_healthy(service, stack, layout, login, started),
    )  # fmt: skip


def _prepare_next_stage(service: Service, stack: Stack, layout: StackLayout) -> None:
    """Make what the next stage needs of a service that is healthy now."""
    if service.name == "postgres":
        postgres.make_databases(layout)
    elif service.name == "s3":
        import boto3

        boto3.client(
            "s3", endpoint_url=stack.s3_endpoint, region_name="us-east-1",
            aws_access_key_id="handoff", aws_secret_access_key="handoff",  # noqa: S106 - moto's
        ).create_bucket(Bucket=BUCKET)  # fmt: skip
