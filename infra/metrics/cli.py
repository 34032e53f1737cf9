"""The command that shows a stack's figures to a monitoring system."""

from __future__ import annotations

import click

from handoff.infra.cli.group import debug_option


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; there is no login.",
)
@click.option(
    "--port", default=9464, show_default=True, type=click.IntRange(1, 65535), help="Its port."
)
@click.option("--once", is_flag=True, help="Print the figures once, and end.")
@debug_option
def metrics(*, host: str, port: int, once: bool) -> None:
    """Serve figures to Prometheus: runs, queues, workers, nights, versions, disks.

    They are read from the Prefect server, the store and the home when they are asked for, at most
    every ten seconds. 'handoff up --metrics' keeps this running.

    \b
    handoff metrics --once
    curl http://127.0.0.1:9464/metrics
    """  # noqa: D301 - click keeps lines as they are after the character \\b
    from handoff.infra.metrics import serving

    if once:
        serving.print_metrics()
    else:
        serving.serve_metrics(host, port)


COMMANDS = (metrics,)
