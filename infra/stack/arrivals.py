"""What tells a stack of new commits and is kept running with it: the webhook, watched places."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.isolation import isolated_command
from handoff.infra.home import absolute_path
from handoff.infra.settings import read_secret
from handoff.infra.stack.layout import Choices, Stack
from handoff.infra.stack.supervision import Service
from handoff.infra.triggers.hooks import read_hooks
from handoff.infra.triggers.locations import open_location

# What takes an option back that a stack was set up with.
OFF = "off"
WEBHOOK, WATCH = "webhook", "watch"
_LOOPBACK = "127.0.0.1"
# One that can't look ends within that time.
SETTLED_S = 3.0


def resolve_webhook(choices: Choices) -> str:
    """Return the whole path of the webhook's configuration; '' for none.

    Raises `UsageProblem` for one that can't be served after the next start of this machine.
    """
    if not choices.webhook or choices.webhook == OFF:
        return ""
    path = absolute_path(Path(choices.webhook).expanduser())
    hooks, _ = read_hooks(path, read_secret)
    by_name = [hook.source.label for hook in hooks if hook.source.secret_env]
    if by_name:
        raise UsageProblem(
            "the stack outlives this shell, and with it the secrets that it holds",
            expected="secret_file for each source", got=f"secret_env for {', '.join(by_name)}",
            remedy="Write each secret to a file of its own, for this user alone, and name that",
        )  # fmt: skip
    return str(path)


def resolve_watched(choices: Choices) -> tuple[str, ...]:
    """Return what is watched, folders by their whole path; raise `UsageProblem` for no place."""
    locations = tuple(
        location if "://" in location else str(absolute_path(Path(location).expanduser()))
        for location in choices.watch or ()
        if location != OFF
    )
    for location in locations:
        open_location(location)
    return locations


def services_of_arrivals(stack: Stack, client: Mapping[str, str]) -> list[Service]:
    """Return a service for the webhook and one for each watched place, stopped before the rest.

    The webhook answers on loopback: a proxy on this machine has the TLS.
    """
    services = []
    if stack.webhook:
        command = isolated_command(
            "handoff", "webhook", "--config", stack.webhook, "--host", _LOOPBACK,
            "--port", str(stack.webhook_port), "--behind-proxy", _LOOPBACK,
        )  # fmt: skip
        services.append(Service(
            WEBHOOK, tuple(command), client, keeps="all", stage=30, address=webhook_address(stack),
        ))  # fmt: skip
    for number, location in enumerate(stack.watch, start=1):
        services.append(Service(
            f"{WATCH}-{number}", tuple(isolated_command("handoff", "watch", location)), client,
            keeps="all", stage=30, address=location,
        ))  # fmt: skip
    return services


def webhook_address(stack: Stack) -> str:
    """Return where the webhook answers, as a proxy on this machine reaches it."""
    return f"http://{_LOOPBACK}:{stack.webhook_port}"
