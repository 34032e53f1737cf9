"""The commands on the served stack of this machine, and on flows that run by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from handoff.infra.cli.completion import complete_model
from handoff.infra.cli.group import debug_option, json_option, quiet_option
from handoff.infra.terminal.output import echo


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
    "--pods", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Kubernetes PodTemplates: each run of their pools gets a pod. From 'kubectl get "
    "podtemplates -o json'.",
)  # fmt: skip
@click.option(
    "--notify", default="", metavar="TYPE/NAME",
    help="A notification block of Prefect's, such as slack-webhook/team, to report failed "
    "nights through.",
)  # fmt: skip
@click.option(
    "--reset",
    "resets",
    is_flag=True,
    help="Restore schedules and pauses that somebody changed on the server.",
)
@json_option
@debug_option
def deploy(
    cron: str | None, time_zone: str | None, targets: tuple[str, ...], pods: Path | None, *,
    notify: str, resets: bool, as_json: bool,
) -> None:  # fmt: skip
    """Make the Prefect server hold Handoff's pools, deployments and automations.

    It can be run again: what is there is brought up to date. A schedule or a pause that
    somebody set on the server stays; --cron and --time-zone change when the nightly begins.

    \b
    handoff deploy --time-zone Europe/Berlin
    handoff deploy --target cuda-sm90
    handoff deploy --pods podtemplates.json
    """  # noqa: D301 - click keeps lines as they are after the character \\b
    from handoff.infra.commands.deploy import ScheduleOptions
    from handoff.infra.commands.deploy import deploy as deploy_flows

    deploy_flows(
        ScheduleOptions(cron, time_zone),
        targets,
        pods,
        notify=notify,
        resets=resets,
        as_json=as_json,
    )


@click.command()
@click.argument("models", metavar="[NAME]...", nargs=-1, shell_complete=complete_model)
@click.option("--alias", default="production", show_default=True, help="What it serves is rebuilt.")
@quiet_option
@json_option
@debug_option
def recompile(models: tuple[str, ...], alias: str, as_json: bool) -> None:
    """Rebuild what is in production with today's toolchain, and promote what is better.

    Models for which nothing has changed are left alone. 'handoff deploy' schedules it for every
    night.

    Exit code 0: every model was replaced, kept or unchanged; 1: some could not be rebuilt.

    \b
    handoff recompile
    handoff recompile resnet18 --json
    """  # noqa: D301 - as above
    from handoff.infra.commands.recompile import recompile_models

    raise click.exceptions.Exit(recompile_models(models, alias, as_json=as_json))


_PORT = click.IntRange(1, 65535)


@click.command()
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1]")
@click.option("--prefect-port", type=_PORT, help="Prefect's port.  [default: 4200]")
@click.option("--mlflow-port", type=_PORT, help="MLflow's port.  [default: 5000]")
@click.option(
    "--builds",
    type=click.IntRange(1, 256),
    help="Flow runs that build at once, each on cores of its own.  [default: 1]",
)
@click.option("--s3/--no-s3", default=None,
              help="Add an S3 endpoint for trying out, which keeps nothing.")  # fmt: skip
@click.option("--s3-port", type=_PORT, help="Its port.  [default: 9000]")
@click.option("--sqlite/--no-sqlite", default=None,
              help="Use SQLite instead of PostgreSQL, for trying out.")  # fmt: skip
@click.option("--webhook", metavar="HOOKS.TOML", help="Answer webhooks, too, on this machine's own "
              "address; a proxy has the TLS.  [default: off]")  # fmt: skip
@click.option("--webhook-port", type=_PORT, help="Its port.  [default: 8787]")
@click.option("--watch", multiple=True, metavar="PLACE", help="Watch a folder or s3://BUCKET/PREFIX"
              " for deliveries, too; may be repeated.  [default: off]")  # fmt: skip
@click.option("--metrics/--no-metrics", default=None,
              help="Serve figures to Prometheus, too, on this machine's own address.")  # fmt: skip
@click.option("--metrics-port", type=_PORT, help="Their port.  [default: 9464]")
@click.option("--use", type=click.Choice(["kept", "shell"]),
              help="Whose settings count if this shell's differ from those that it was set up "
                  "with.")  # fmt: skip
@click.option("--install", type=click.Choice(["user", "system"]),
              help="Write a systemd unit, too, that brings it up at boot.")  # fmt: skip
@click.option("--print-environment", is_flag=True, help="Print what to export, and nothing else.")
@json_option
@debug_option
def up(
    *,
    print_environment: bool,
    as_json: bool,
    use: Any,  # noqa: ANN401 - one of two words
    install: str | None,
    **chosen: Any,  # noqa: ANN401 - the options, which Choices names
) -> None:
    """Start Prefect, MLflow, PostgreSQL and workers on this machine, and wait for them.

    What runs already stays; what is down is started again. After 'handoff down' it comes up as it
    was set up, with the same store, logins, ports and builds, from any shell.

    \b
    handoff up
    handoff up --use shell
    handoff up --webhook hooks.toml --watch /srv/deliveries
    eval "$(handoff up --print-environment)"
    """  # noqa: D301 - click keeps lines as they are after the character \\b
    from handoff.infra.stack.layout import Choices
    from handoff.infra.stack.up import bring_up

    chosen["watch"] = chosen["watch"] or None
    bring_up(Choices(**chosen), use=use, print_environment=print_environment, as_json=as_json)
    if install:
        from handoff.infra.home import home_folder
        from handoff.infra.stack.unit import write_unit

        file, following = write_unit(home_folder(), for_system=install == "system")
        echo(f"The unit is in {file}. Next: {following}", err=True)


@click.command()
@click.option("--now", is_flag=True, help="End running builds instead of waiting for them.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Wait no longer than that.  [default: as long as it takes]",
)
@json_option
@debug_option
def down(*, now: bool, timeout_s: float | None, as_json: bool) -> None:
    """Stop what 'handoff up' started, and nothing else. Data stay.

    Running builds may finish: the pool gives out nothing more, and it says what it is waiting for.
    A release or rebuild that is ended before it is done is repeated after 'handoff up', as after a
    crash.
    """
    from handoff.infra.stack.down import bring_down

    bring_down(now=now, timeout_s=timeout_s, as_json=as_json)


@click.command()
@json_option
@debug_option
def status(as_json: bool) -> None:
    """Show the services that 'handoff up' started. Exit code 0: all of them are healthy."""
    from handoff.infra.stack.status import show_status

    raise click.exceptions.Exit(show_status(as_json=as_json))


@click.command()
@click.option("--pool", default="handoff-build", show_default=True, help="The pool to work for.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1024),
    help="Flow runs at once, each on its share of the cores.  [default: 1]",
)
@click.option("--cores", default="", help="The cores to use, such as 0-3,8.  [default: all]")
@click.option("--name", default="", help="The name that Prefect shows.  [default: the machine's]")
@click.option(
    "--join",
    "url",
    default="",
    metavar="URL",
    help="Take the stack's settings from its Prefect server. What the environment says stays.",
)
@click.option(
    "--trust",
    "trusted",
    multiple=True,
    metavar="ID",
    help="Of the stack's keys, trust the one whose id begins like that. Repeatable.",
)
@click.option(
    "--one-run",
    "is_pod",
    is_flag=True,
    help="Carry out the run that PREFECT__FLOW_RUN_ID names, and end: what a pod is for.",
)
@debug_option
def worker(
    *, pool: str, limit: int | None, cores: str, name: str, url: str, trusted: tuple[str, ...],
    is_pod: bool,
) -> None:  # fmt: skip
    """Run a worker for a pool, on this machine, for the server that PREFECT_API_URL names.

    It proves first that the store can be written and read, that the key that signs is trusted, and
    that compiler, torch, clock and disk are right. If one isn't, it says so and takes no job. It
    looks again before each job, leaves the pool while something is wrong, and comes back.

    \b
    handoff worker --pool handoff-cuda-sm90 --limit 1
    handoff worker --pool handoff-build --cores 0-7 --limit 2
    handoff worker --join http://stack.example.org:4200 --trust 0123456789ab
    """  # noqa: D301 - as above
    from handoff.infra.stack.worker import JoinOptions, carry_out_one_run, run_worker

    if is_pod:
        if limit or cores or name or url or trusted:
            raise click.UsageError("--one-run goes with --pool alone")
        carry_out_one_run(pool)
    run_worker(pool, limit, cores, name, JoinOptions(url, trusted))


COMMANDS = (deploy, recompile, up, down, status, worker)
