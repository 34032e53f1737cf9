"""The commands on what is registered: list it, pull it, promote it, give it up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from handoff.infra.cli.completion import complete_model
from handoff.infra.cli.group import debug_option, json_option, quiet_option
from handoff.infra.terminal.output import echo

if TYPE_CHECKING:
    from handoff.tasks.registry.messages import Layout

page_option = click.option(
    "--html", "page", type=click.Path(path_type=Path), help="Write a page to this file instead."
)
reason_option = click.option("--reason", default="", help="Why; the ledger keeps it.")


@click.command(name="list")
@json_option
@debug_option
def list_models(as_json: bool) -> None:
    """List the registered models, and what their aliases point to."""
    from handoff.infra.commands.registry import list_registered

    list_registered(as_json=as_json)


@click.command()
@click.argument("name", shell_complete=complete_model, metavar="NAME[@ALIAS|@VERSION]")
@json_option
@debug_option
def show(name: str, as_json: bool) -> None:
    """Show one version of a model: its targets, how accurate and how fast they are.

    Of a name alone it is the version in production, else the newest, as the first line says.
    """
    from handoff.infra.commands.registry import show_version

    show_version(name, as_json=as_json)


@click.command()
@click.argument("before", shell_complete=complete_model, metavar="NAME@A")
@click.argument("after", shell_complete=complete_model, metavar="NAME@B")
@page_option
@json_option
@debug_option
def diff(before: str, after: str, page: Path | None, as_json: bool) -> None:
    """Show what differs between two versions: sources, passes, toolchain, numbers, speed."""
    from handoff.infra.commands.registry import show_difference

    show_difference(before, after, page, as_json=as_json)


@click.command()
@click.argument("name", shell_complete=complete_model, metavar="NAME@ALIAS")
@click.option("--to", "folder", type=click.Path(path_type=Path), help="A new folder.")
@click.option(
    "--for", "--target", "target", default="auto", show_default=True,
    help="A target, for another machine; or this machine's.",
)  # fmt: skip
@click.option("--verify-only", is_flag=True, help="Fetch and verify everything, and keep nothing.")
@click.option("--delivery", is_flag=True, help="Fetch what the release was made from instead.")
@click.option(
    "--layout", type=click.Choice(["release", "triton"]), default="release", show_default=True,
    help="triton: into a model repository of Triton Inference Server.",
)  # fmt: skip
@quiet_option
@json_option
@debug_option
def pull(
    name: str, folder: Path | None, target: str, *, verify_only: bool, delivery: bool,
    layout: Layout, as_json: bool,
) -> None:  # fmt: skip
    """Fetch a release's package for this machine: signature, digests and fit are verified.

    Only the store is asked, and the next one resumes an interrupted pull. Of a name alone it is the
    version in production, else the newest, as the first line says.

    \b
    handoff pull resnet18@production --to model
    handoff pull resnet18@7 --to model --for cpu-avx2
    handoff pull resnet18@production --verify-only
    handoff pull resnet18@7 --delivery --to delivery
    handoff pull resnet18@production --to model_repository --layout triton
    """  # noqa: D301 - click keeps lines as they are after the character \\b
    from handoff.artifacts.errors import UsageProblem
    from handoff.infra.commands.registry import pull_delivery, pull_release

    if delivery:
        if folder is None or verify_only or target != "auto" or layout != "release":
            raise UsageProblem(
                "a delivery is pulled into a folder, and is for no machine in particular",
                expected="--delivery --to FOLDER", got="other options than these",
                remedy="Leave --for, --layout and --verify-only out, and name a folder with --to",
            )  # fmt: skip
        pull_delivery(name, folder, as_json=as_json)
        return
    if verify_only == (folder is not None):
        raise UsageProblem(
            "pull needs to know what to do", expected="--to FOLDER, or --verify-only",
            got="both" if verify_only else "neither", remedy="Name one of them",
        )  # fmt: skip
    pull_release(name, folder, target, layout, as_json=as_json)


@click.command()
@click.argument("name", shell_complete=complete_model, metavar="NAME@VERSION")
@click.option("--to", "alias", default="production", show_default=True, help="The alias to move.")
@click.option(
    "--from", "expected", type=click.IntRange(0), default=None,
    help="Only if the alias points to this version now; 0: to none.",
)  # fmt: skip
@click.option(
    "--override", is_flag=True, help="Set the rules of a promotion aside; needs --reason."
)
@click.option("--narrower", is_flag=True, help="Even if it accepts less than the one it replaces.")
@click.option(
    "--new-alias", is_flag=True, help="Create the alias, even if it is like one that is there."
)
@reason_option
@json_option
@debug_option
def promote(
    name: str, alias: str, expected: int | None, *, reason: str, as_json: bool, **allowed: bool
) -> None:
    """Point an alias to a version that is as accurate and as fast as the one it replaces.

    It must also accept every request that the one it replaces accepts. An alias that isn't there
    yet is created, and said to be new; one that is like another (prod, production) needs
    --new-alias. Exit code 4: a rule of the recipe's [promotion] is broken, or a request would be
    refused; 5: another was quicker.

    \b
    handoff promote resnet18@candidate --to production
    handoff promote resnet18@7 --override --reason "the old one leaks"
    """  # noqa: D301 - as above
    from handoff.infra.commands.transitions import promote as promote_version

    promote_version(name, alias, reason=reason, expected=expected, as_json=as_json, **allowed)


@click.command()
@click.argument("name", shell_complete=complete_model, metavar="NAME")
@click.option("--alias", default="production", show_default=True, help="The alias to move back.")
@click.option(
    "--to", "version", type=click.IntRange(1), help="A version that it pointed to before."
)
@reason_option
@json_option
@debug_option
def rollback(name: str, alias: str, version: int | None, reason: str, as_json: bool) -> None:
    """Move an alias back to the version that it pointed to before."""
    from handoff.infra.commands.transitions import roll_back

    roll_back(name, alias, version, reason, as_json=as_json)


@click.command()
@click.argument("name", shell_complete=complete_model, metavar="NAME")
@page_option
@json_option
@debug_option
def history(name: str, page: Path | None, as_json: bool) -> None:
    """Show a model's ledger: who moved what, when and why. Every signature is verified.

    As a page it shows the model over time, too: error and speed by version, and its nights.
    """
    from handoff.infra.commands.registry import show_history

    show_history(name, page, as_json=as_json)


@click.command(name="verify-torch")
@click.argument("name", shell_complete=complete_model, metavar="NAME[@ALIAS|@VERSION]")
@click.option("--torch", "versions", multiple=True, required=True, help="A whole version, 2.14.1.")
@click.option("--target", default="auto", show_default=True, help="A target; or this machine's.")
@json_option
@debug_option
def verify_torch(name: str, versions: tuple[str, ...], target: str, as_json: bool) -> None:
    """Compare a release's package with its delivery in other versions of torch.

    uv makes an environment for each, once. The record stays as it was signed: what a recipe names
    under [torch] also is compared at the release, and the package then fits there. Exit code 4: it
    isn't right with one of them.

    \b
    handoff verify-torch resnet18@production --torch 2.14.1 --torch 2.13.0
    """  # noqa: D301 - as above
    from handoff.infra.commands.inspection import verify_torches

    raise click.exceptions.Exit(verify_torches(name, versions, target, as_json=as_json))


@click.command()
@click.argument("name", shell_complete=complete_model, metavar="NAME@VERSION")
@reason_option
@json_option
@debug_option
def retire(name: str, reason: str, as_json: bool) -> None:
    """Retire a version that no alias points to; 'handoff gc' then removes its packages."""
    from handoff.infra.commands.transitions import retire as retire_version

    retire_version(name, reason, as_json=as_json)


@click.command()
@click.argument("name", shell_complete=complete_model, metavar="[NAME]", default="")
@json_option
@debug_option
def sync(name: str, as_json: bool) -> None:
    """Show in MLflow what the store's ledgers say: after an outage, or in a new MLflow."""
    from handoff.infra.commands.transitions import sync as sync_mlflow

    sync_mlflow(name, as_json=as_json)


@click.command()
@click.option("--pretend", is_flag=True, help="Only say what would be removed.")
@click.option(
    "--older-than",
    "grace_h",
    default=24.0,
    show_default=True,
    help="Hours, at least 24; newer objects stay.",
)
@json_option
@debug_option
def gc(pretend: bool, grace_h: float, as_json: bool) -> None:
    """Remove what no version needs from the store: of retired ones, of interrupted releases."""
    from handoff.infra.commands.transitions import collect_garbage

    collect_garbage(grace_h, pretend=pretend, as_json=as_json)


@click.group(invoke_without_command=True)
@click.pass_context
def keys(context: click.Context) -> None:
    """Whose signatures are trusted here."""
    if context.invoked_subcommand is None:
        echo(context.get_help())


@keys.command(name="show")
@json_option
@debug_option
def show_keys(as_json: bool) -> None:
    """Print the public key that signs here, for others to trust."""
    from handoff.infra.commands.keys import show_keys as print_keys

    print_keys(as_json=as_json)


@keys.command()
@click.argument("file", type=click.Path(path_type=Path))
@debug_option
def trust(file: Path) -> None:
    """Trust a public key: what it signed is verified from now on.

    \b
    handoff keys show > release.pub     # where releases are made
    handoff keys trust release.pub      # where they are pulled
    """  # noqa: D301 - as above
    from handoff.infra.commands.keys import trust_key

    trust_key(file)


@click.group(invoke_without_command=True)
@click.pass_context
def store(context: click.Context) -> None:
    """Copy a whole store to another place, or verify one."""
    if context.invoked_subcommand is None:
        echo(context.get_help())


@store.command(name="copy")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--dry-run", "pretend", is_flag=True, help="Only say what would be copied.")
@click.option(
    "--replace-history",
    "replaces",
    is_flag=True,
    help="If TO has another history of a model, replace it with FROM's.",
)
@json_option
@debug_option
def copy_store(source: str, target: str, *, pretend: bool, replaces: bool, as_json: bool) -> None:
    """Copy what the ledgers of the store FROM keep to TO, each a folder or s3://bucket/prefix.

    Each object is verified on its way. Ledgers come last, so that nothing half copied is seen, and
    the same command again copies only what is missing.

    \b
    handoff store copy ~/.local/share/handoff/store s3://models/releases
    handoff store copy s3://models/releases /backup/store --dry-run
    """  # noqa: D301 - as above
    from handoff.infra.commands.store import copy

    copy(source, target, replaces=replaces, pretend=pretend, as_json=as_json)


@store.command(name="verify")
@click.argument("place", metavar="[STORE]", default="")
@click.option("--quick", is_flag=True, help="Trust the store's own checksums, and read nothing.")
@json_option
@debug_option
def verify_store(place: str, *, quick: bool, as_json: bool) -> None:
    """Verify that every object that a record names is there, with the bytes of its digest.

    By default this machine's store. Exit code 5: something is missing.
    """
    from handoff.infra.commands.store import verify

    raise click.exceptions.Exit(verify(place, quick=quick, as_json=as_json))


COMMANDS = (
    list_models, show, diff, pull, verify_torch, promote, rollback, history, retire, sync, gc, keys,
    store,
)  # fmt: skip
