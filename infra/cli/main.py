"""The command line: `handoff ...`. It imports neither torch, Prefect nor MLflow at its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from handoff.infra.cli import guide as guide_cli
from handoff.infra.cli import registry as registry_cli
from handoff.infra.cli import stack as stack_cli
from handoff.infra.cli.group import HandoffGroup, debug_option, json_option, quiet_option
from handoff.infra.metrics import cli as metrics_cli
from handoff.infra.notifications import cli as notifications_cli
from handoff.infra.terminal.output import echo, on_terminal
from handoff.infra.triggers import cli as arrivals_cli

EXIT_CODES = """
\b
Exit codes: 0 done; 1 this machine lacks something, or a step crashed;
2 the delivery is unsound; 3 it is unreadable; 4 a package was refused;
5 the registry, the store or a delivery's place failed; 6 a pulled package doesn't verify or fit;
64 the command line, a setting or the recipe is wrong; 130 interrupted.
'handoff explain 4' says more of one.
"""


def _print_version(context: click.Context, _: click.Parameter, is_requested: bool) -> None:
    if is_requested:
        from handoff.artifacts.version import own_commit, own_version

        commit = own_commit()
        echo(f"{own_version()} ({commit})" if commit else own_version())
        context.exit()


@click.group(cls=HandoffGroup, epilog=EXIT_CODES, context_settings={"max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version, and the commit that it was built from.",
)
@click.pass_context
def main(context: click.Context) -> None:
    """Release PyTorch models as verified AOTInductor packages, or say why they can't be.

    \b
    handoff deliver examples.resnet18:build --to delivery   the training side
    handoff inspect delivery                                is it sound?
    handoff release delivery                                compile, verify, register
    handoff promote resnet18@candidate --to production      let it be served
    handoff pull resnet18@production --to model             the serving side
    handoff explain unmoved-output                          what a word means
    """  # noqa: D301 - click keeps lines as they are after the character \\b
    from handoff.infra.home import wants_no_colour

    # Else click colours on a terminal, and only there.
    context.color = False if wants_no_colour() else None


@main.command()
@click.argument("factory", metavar="MODULE:FACTORY")
@click.option(
    "--to", "folder", required=True, type=click.Path(path_type=Path), help="A new folder."
)
@click.option(
    "--name", default="", help="The model's name in the registry.  [default: its class's]"
)
@click.option(
    "--yes", is_flag=True, help="Ask nothing: use the class's name and the example's ranges."
)
@quiet_option
@json_option
@debug_option
def deliver(factory: str, folder: Path, name: str, *, yes: bool, as_json: bool) -> None:
    """Write a delivery from a model.

    MODULE:FACTORY names a function that returns the model and its example inputs (a tuple), and
    optionally a dictionary of further arguments of handoff.deliver. On a terminal it asks for what
    it can't find out: the name, and the numbers that an input may hold.

    \b
    handoff deliver examples.resnet18:build --to delivery
    """  # noqa: D301 - as above
    from handoff.infra.commands.deliver import deliver_model

    ask = on_terminal() and not yes
    deliver_model(factory, folder, name, ask=ask, as_json=as_json)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--name", default="", help="The model's name in the registry.  [default: the folder's]"
)
@click.option("--input", "inputs", multiple=True, help="NAME:DTYPE:AXES of an input.")
@click.option(
    "--dimension", "dimensions", multiple=True, help="NAME=MIN:MAX[:MULTIPLE] of a dynamic size."
)
@click.option("--range", "ranges", multiple=True, help="NAME=LOW:HIGH of an input's values.")
@click.option("--repository", default="", help="Where the model's code is kept.")
@click.option("--commit", default="", help="The commit that it was trained with.")
@click.option("--training-run", default="", help="The training run, as its tracker names it.")
@click.option("--author", default="", help="Who hands it over.")
@click.option("--recipe", type=click.Path(path_type=Path), help="A recipe, for its extensions.")
@click.option("--yes", is_flag=True, help="Accept what was found, and ask nothing.")
@click.option("--force", is_flag=True, help="Replace the contract that is there.")
@json_option
@debug_option
def init(
    folder: Path,
    recipe: Path | None,
    *,
    yes: bool,
    force: bool,
    as_json: bool,
    **flags: Any,  # noqa: ANN401 - the flags, which read_init_options names
) -> None:
    """Give a bare to_folder folder the contract that makes it a delivery.

    Inputs are read off the layers that take them, and the model is run on what was found; on a
    terminal it asks, and Enter accepts what was found.

    \b
    handoff init folder
    handoff init folder --input 'x:float32:batch,3,224,224' --dimension 'batch=1:256'
    handoff init folder --input 'ids:int64:batch,length' --range 'ids=0:30521'
    """  # noqa: D301 - as above
    from handoff.infra.commands.init import init_delivery, read_init_options

    options = read_init_options(recipe, **flags)
    init_delivery(folder, options, ask=on_terminal() and not yes, force=force, as_json=as_json)


@main.command()
@click.argument("delivery", type=click.Path(path_type=Path))
@click.option("--recipe", type=click.Path(path_type=Path), help="A recipe, for what it requires.")
@click.option("--captures", is_flag=True, help="Try every capture technology, and compare them.")
@quiet_option
@json_option
@debug_option
def inspect(delivery: Path, recipe: Path | None, captures: bool, as_json: bool) -> None:
    """Say whether a delivery is sound, without releasing it.

    Exit code 0: sound, or sound within limits; 2: unsound; 3: not readable as a delivery.
    """
    from handoff.infra.commands.inspection import inspect_delivery

    code = inspect_delivery(delivery, recipe, captures=captures, as_json=as_json)
    raise click.exceptions.Exit(code)


@main.command()
@click.argument("delivery", type=click.Path(path_type=Path))
@click.option("--recipe", type=click.Path(path_type=Path), help="A recipe (TOML).")
@click.option("--alias", default="candidate", show_default=True, help="The alias to set last.")
@click.option("--rebuild", is_flag=True, help="Build again, even if nothing has changed.")
@click.option("--dry-run", is_flag=True, help="Say what would be built and why; write nothing.")
@quiet_option
@json_option
@debug_option
def release(
    delivery: Path, recipe: Path | None, alias: str, *, rebuild: bool, dry_run: bool, as_json: bool
) -> None:
    """Check, compile, verify and register a delivery.

    With --quiet it prints NAME@VERSION and nothing else.

    \b
    handoff release delivery
    handoff release delivery --dry-run
    handoff release delivery --recipe recipe.toml --json
    """  # noqa: D301 - as above
    from handoff.infra.commands.release import release_delivery

    raise click.exceptions.Exit(
        release_delivery(delivery, recipe, alias, rebuild=rebuild, dry_run=dry_run, as_json=as_json)
    )


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--delivery",
    type=click.Path(path_type=Path),
    help="The folder that was released: compare with it again, on the same inputs.",
)
@json_option
@debug_option
def verify(folder: Path, delivery: Path | None, as_json: bool) -> None:
    """Check a pulled folder: signature, digests, fit to this machine. Exit code 0, 4 or 6."""
    from handoff.infra.commands.inspection import verify_folder

    verify_folder(folder, delivery, as_json=as_json)


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=5000, show_default=True, type=click.IntRange(1, 65535))
@debug_option
def ui(host: str, port: int) -> None:
    """Open MLflow's UI on what is registered."""
    from handoff.infra.commands.ui import open_ui

    open_ui(host, port)


@main.command()
@json_option
@debug_option
def passes(as_json: bool) -> None:
    """List the graph passes that a recipe may name, in the order that suits most models."""
    from handoff.infra.commands.inspection import list_passes

    list_passes(as_json=as_json)


@main.command()
@json_option
@debug_option
def doctor(as_json: bool) -> None:
    """Say what this machine can do, and what is missing."""
    from handoff.infra.commands.doctor import run_checks

    raise click.exceptions.Exit(run_checks(as_json=as_json))


for registered in (
    *registry_cli.COMMANDS,
    *stack_cli.COMMANDS,
    *arrivals_cli.COMMANDS,
    *notifications_cli.COMMANDS,
    *metrics_cli.COMMANDS,
    *guide_cli.COMMANDS,
):
    main.add_command(registered)


if __name__ == "__main__":
    main()
