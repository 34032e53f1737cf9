"""The commands that help with the rest: explain a code, complete a command, compile C++."""

from __future__ import annotations

import click

from handoff.infra.cli.completion import SHELLS, complete_code, completion_script
from handoff.infra.cli.options import debug_option, json_option
from handoff.infra.terminal.echoing import echo


@click.command()
@click.argument("code", default="", shell_complete=complete_code)
@json_option
@debug_option
def explain(code: str, as_json: bool) -> None:
    """Say what a finding, an error or an exit code means, what causes it, and what to do.

    CODE is what stands in brackets behind a finding, an error's class, or a number; without one,
    all are listed.

    \b
    handoff explain
    handoff explain unmoved-output
    handoff explain DeliveryUnsound
    handoff explain 4
    """  # noqa: D301 - click keeps lines as they are after the character \\b
    from handoff.infra.explaining.telling import explain as tell

    tell(code, as_json=as_json)


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
@debug_option
def completion(context: click.Context, shell: str) -> None:
    """Print the script by which a shell completes commands, options, codes and models.

    \b
    eval "$(handoff completion bash)"                                    in ~/.bashrc
    eval "$(handoff completion zsh)"                                     in ~/.zshrc
    handoff completion fish > ~/.config/fish/completions/handoff.fish    once
    """  # noqa: D301 - as above
    echo(completion_script(context.find_root().command, shell))


@click.command()
@click.option("--cmake", is_flag=True, help="Print the options that CMake needs instead.")
@click.option(
    "--pkg-config", is_flag=True, help="Print the arguments that pkg-config needs instead."
)
@debug_option
def cpp(*, cmake: bool, pkg_config: bool) -> None:
    """Print what a C++ program of yours is compiled and linked with, to open and call releases.

    \b
    g++ -O2 serve.cpp $(handoff cpp) -o serve
    cmake -S . -B build $(handoff cpp --cmake)
    g++ -c serve.cpp $(pkg-config --cflags $(handoff cpp --pkg-config))
    """  # noqa: D301 - as above
    from handoff.infra.commands.cpp import print_options

    if cmake and pkg_config:
        raise click.UsageError("expected one of --cmake and --pkg-config, got both")
    print_options("cmake" if cmake else "pkg-config" if pkg_config else "compiler")


COMMANDS = (explain, completion, cpp)
