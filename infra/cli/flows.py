"""The commands about flows that run themselves: deploy, recompile."""

from __future__ import annotations

import click

from handoff.infra.cli.completion import complete_model
from handoff.infra.cli.options import debug_option, json_option, quiet_option


@click.command()
@click.option(
    "--cron",
    metavar="LINE",
    help="When the nightly begins.  [default: as the server has it, else 0 2 * * *]",
)
@click.option(
    "--time-zone",
    metavar="ZONE",
    help="Such as Europe/Berlin.  [default: as the server has it, else TZ, else UTC]",
)
@click.option(
    "--target", "targets", multiple=True,
    help="A target whose hardware has a work pool of its own, handoff-TARGET. May be repeated.",
)  # fmt: skip
@click.option(
    "--notify", default="", metavar="TYPE/NAME",
    help="A notification block of Prefect's, such as slack-webhook/team, to tell of failed nights.",
)  # fmt: skip
@click.option(
    "--reset",
    "resets",
    is_flag=True,
    help="Put schedules and pauses back that somebody changed on the server.",
)
@json_option
@debug_option
def deploy(
    cron: str | None, time_zone: str | None, targets: tuple[str, ...], *,
    notify: str, resets: bool, as_json: bool,
) -> None:  # fmt: skip
    """Make the Prefect server hold Handoff's pools, deployments and automations.

    Again and again, if you like: what is there is brought up to date. A schedule or a pause that
    somebody set on the server stays; --cron and --time-zone change when the nightly begins.

    \b
    handoff deploy --time-zone Europe/Berlin
    handoff deploy --target cuda-sm90
    """  # noqa: D301 - click keeps lines as they are after the character \\b
    from handoff.infra.commands.deploying import Night
    from handoff.infra.commands.deploying import deploy as apply

    apply(Night(cron, time_zone), targets, notify=notify, resets=resets, as_json=as_json)


@click.command()
@click.argument("models", metavar="[NAME]...", nargs=-1, shell_complete=complete_model)
@click.option("--alias", default="production", show_default=True, help="What it serves is rebuilt.")
@quiet_option
@json_option
@debug_option
def recompile(models: tuple[str, ...], alias: str, as_json: bool) -> None:
    """Rebuild what is in production with today's toolchain, and let the better ones serve.

    What nothing has changed about is left alone. 'handoff deploy' lets it run every night.

    Exit code 0: every model was replaced, kept or unchanged; 1: some could not be rebuilt.

    \b
    handoff recompile
    handoff recompile resnet18 --json
    """  # noqa: D301 - as above
    from handoff.infra.commands.recompiling import recompile_models

    raise click.exceptions.Exit(recompile_models(models, alias, as_json=as_json))


COMMANDS = (deploy, recompile)
