"""The commands about flows that run themselves: deploy, recompile."""

from __future__ import annotations

import click

from handoff.infra.cli.completion import complete_model
from handoff.infra.cli.options import debug_option, json_option, quiet_option


@click.command()
@click.option("--cron", default="0 2 * * *", show_default=True, help="When the nightly begins.")
@click.option("--time-zone", default="UTC", show_default=True, help="Such as Europe/Berlin.")
@click.option(
    "--target", "targets", multiple=True,
    help="A target whose hardware has a work pool of its own, handoff-TARGET. May be repeated.",
)  # fmt: skip
@click.option(
    "--notify", default="", metavar="TYPE/NAME",
    help="A notification block of Prefect's, such as slack-webhook/team, to tell of failed nights.",
)  # fmt: skip
@json_option
@debug_option
def deploy(
    cron: str, time_zone: str, targets: tuple[str, ...], *, notify: str, as_json: bool
) -> None:
    """Make the Prefect server hold Handoff's pools, deployments and automations.

    Again and again, if you like: what is there is brought up to date.

    \b
    handoff deploy --time-zone Europe/Berlin
    handoff deploy --target cuda-sm90
    """  # noqa: D301 - click keeps lines as they are after the character \\b
    from handoff.infra.commands.deploying import deploy as apply

    apply(cron, time_zone, targets, notify=notify, as_json=as_json)


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
