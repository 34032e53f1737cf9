"""The commands that help with the rest: explain, complete, compile C++, ask the toolchain."""

from __future__ import annotations

import click

from handoff.infra.cli.completion import SHELLS, complete_code, completion_script
from handoff.infra.cli.group import debug_option, json_option, quiet_option
from handoff.infra.terminal.output import echo


@click.command()
@click.argument("code", nargs=-1, shell_complete=complete_code)
@json_option
@debug_option
def explain(code: tuple[str, ...], as_json: bool) -> None:
    """Say what a finding, an error or an exit code means, what causes it, and what to do.

    CODE is what stands in brackets behind a finding, an error's class, a number, a graph pass, of
    which it says what it does, or the title of a table's column or of a report's figure; without
    one, all but the passes are listed.

    \b
    handoff explain
    handoff explain unmoved-output
    handoff explain DeliveryUnsound
    handoff explain 4
    handoff explain contiguous-linear
    handoff explain rtol needed
    """  # noqa: D301 - click keeps lines as they are after the character \\b
    from handoff.infra.explaining.explain import explain as print_explanation

    print_explanation(" ".join(code), as_json=as_json)


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


@click.group(invoke_without_command=True)
@click.option("--target", default="cpu", show_default=True, help="The target to compile for.")
@click.option(
    "--operator", "operators", multiple=True, help="Only this one; the result isn't kept."
)
@click.option("--again", is_flag=True, help="Ask again what was asked before.")
@click.option(
    "--show", "shown", is_flag=False, flag_value="*", default=None, metavar="[OPERATOR]",
    help="Print what is known, of one operator with the script that reproduces it; ask nothing.",
)  # fmt: skip
@quiet_option
@json_option
@debug_option
@click.pass_context
def conformance(
    context: click.Context,
    target: str,
    operators: tuple[str, ...],
    *,
    again: bool,
    shown: str | None,
    as_json: bool,
) -> None:
    """Find out which operators today's toolchain gets wrong, before a model meets them.

    PyTorch's own operator samples and particular values are compiled in bundles and compared with
    eager, which takes a while. What is known is kept as it comes, so that an interrupted run can be
    continued; a table that is there for this toolchain is printed.

    \b
    handoff conformance --target cpu-avx2
    handoff conformance --show amax
    handoff conformance diff cpu-avx2 cpu-avx512
    """  # noqa: D301 - click keeps lines as they are after the character \\b
    if context.invoked_subcommand is not None:
        return
    from handoff.infra.commands.conformance import ask_toolchain, show_conformance

    if shown is not None:
        show_conformance(target, shown, as_json=as_json)
    else:
        ask_toolchain(target, operators, again=again, as_json=as_json)


@conformance.command(name="diff")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@json_option
@debug_option
def diff_tables(before: str, after: str, as_json: bool) -> None:
    """Say what another toolchain would break, and what it would fix.

    A and B are targets (today's toolchain), the first digits of a kept table's toolchain, or files.

    \b
    handoff conformance diff 3f2a9c cpu-avx512
    handoff conformance diff before.json after.json
    """  # noqa: D301 - as above
    from handoff.infra.commands.conformance import show_changes

    show_changes(before, after, as_json=as_json)


COMMANDS = (explain, completion, cpp, conformance)
