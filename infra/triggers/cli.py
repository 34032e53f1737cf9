"""The commands by which a new model commit comes in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from handoff.infra.cli.group import debug_option, json_option

_policy_option = click.option(
    "--policy", type=click.Choice(["queue", "supersede"]), default="queue", show_default=True,
    help="Older commits of the model go first, or are cancelled.",
)  # fmt: skip


@click.command()
@click.option("--delivery", default="", metavar="URI", help="Where the delivery lies.")
@click.option("--commit", default="", help="The model commit; one commit is one release.")
@click.option("--model", default="", help="The model's name in the registry.")
@click.option("--repository", default="", help="Where the model's code is kept.")
@click.option("--by", default="", help="Who asks for it; else this user.")
@click.option("--alias", default="", help="The alias to set last; else candidate.")
@_policy_option
@click.option("--again", is_flag=True, help="Even if it was released or refused before.")
@click.option("--wait", is_flag=True, help="Wait for the run's end, and exit with its code.")
@click.option(
    "--keep", is_flag=True, help="Keep it on disk if Prefect doesn't answer, and exit with 0."
)
@click.option("--kept", is_flag=True, help="Post what was kept; with --wait until nothing is left.")
@json_option
@debug_option
def notify(
    *, policy: Any, again: bool, wait: bool, keep: bool, kept: bool, as_json: bool, **options: str  # noqa: ANN401 - click checks the choice
) -> None:  # fmt: skip
    """Report a new model commit to the Prefect server, which releases it once.

    URI is a folder that the workers see, s3://bucket/prefix, https://...#sha256=DIGEST, or
    git+https://...@COMMIT#subdirectory=PATH.

    \b
    handoff notify --delivery s3://models/in/resnet18 --commit $(git rev-parse HEAD)
    handoff notify --delivery delivery --model resnet18 --wait
    handoff notify --kept --wait
    """  # noqa: D301 - click keeps lines as they are after the character \\b
    from handoff.artifacts.errors import UsageProblem
    from handoff.infra.triggers.notify import keep_and_post, post_kept, read_arrival
    from handoff.infra.triggers.notify import notify as post

    if bool(options["delivery"]) == kept or (keep and (kept or wait or again)):
        raise UsageProblem(
            "notify needs to know what to tell",
            expected="--delivery URI, with --keep or with --wait and --again; or --kept alone",
            got="other options than these", remedy="See 'handoff notify --help'",
        )  # fmt: skip
    if kept:
        raise click.exceptions.Exit(post_kept(wait=wait, as_json=as_json))
    arrival = read_arrival(**options)
    if keep:
        raise click.exceptions.Exit(keep_and_post(arrival, policy, as_json=as_json))
    raise click.exceptions.Exit(post(arrival, policy, again=again, wait=wait, as_json=as_json))


@click.command()
@click.option("--config", required=True, type=click.Path(path_type=Path), help="hooks.toml.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8787, show_default=True, type=click.IntRange(1, 65535))
@click.option("--certificate", type=click.Path(path_type=Path), help="For TLS: a PEM file.")
@click.option("--key", type=click.Path(path_type=Path), help="Its key, if in a file of its own.")
@click.option(
    "--behind-proxy", default="", metavar="ADDRESS",
    help="The proxy that has TLS: whose X-Forwarded-For is trusted.",
)  # fmt: skip
@debug_option
def webhook(
    *, config: Path, host: str, port: int, certificate: Path | None, key: Path | None,
    behind_proxy: str,
) -> None:  # fmt: skip
    """Answer webhooks of GitHub, GitLab, S3 and our own: /github, /gitlab, /s3, /handoff.

    Every request is verified by the secret of its source. Beyond loopback TLS is required, here or
    in a proxy.

    \b
    handoff webhook --config hooks.toml
    """  # noqa: D301 - as above
    from handoff.infra.triggers.serving import serve

    serve(
        config, host, port, certificate=certificate and certificate.absolute(),
        key=key and key.absolute(), behind_proxy=behind_proxy,
    )  # fmt: skip


@click.command()
@click.argument("place", metavar="FOLDER|s3://BUCKET/PREFIX")
@click.option(
    "--every", default=30.0, show_default=True, type=click.FloatRange(0.1, 86400),
    help="Seconds between two looks.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Look twice, post what is complete, and end.")
@_policy_option
@debug_option
def watch(place: str, every: float, *, once: bool, policy: Any) -> None:  # noqa: ANN401 - as above
    """Post a release for each folder that appears in a place.

    A delivery is complete when its delivery.toml is there and nothing has changed since the look
    before. The same content is posted once, also after a restart.

    \b
    handoff watch /srv/deliveries
    handoff watch s3://models/in --every 60
    """  # noqa: D301 - as above
    from handoff.infra.triggers.watcher import watch as look

    raise click.exceptions.Exit(look(place, every, policy, once=once))


COMMANDS = (notify, webhook, watch)
