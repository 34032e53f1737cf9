"""The commands about the toolchain itself: which operators it gets wrong."""

from __future__ import annotations

import click

from handoff.infra.cli.options import debug_option, json_option, quiet_option


@click.group(invoke_without_command=True)
@click.option("--target", default="cpu", show_default=True, help="The target to compile for.")
@click.option("--operator", "operators", multiple=True, help="Only this one; nothing is kept.")
@click.option("--again", is_flag=True, help="Ask again what was asked before.")
@click.option(
    "--show", "shown", is_flag=False, flag_value="*", default=None, metavar="[OPERATOR]",
    help="Print what is known, of one operator with the script that repeats it; ask nothing.",
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
    eager, which takes a while. What is known is kept as it comes, so that a run
    that was interrupted goes on; a table that is there for this toolchain is printed.

    \b
    handoff conformance --target cpu-avx2
    handoff conformance --show amax
    handoff conformance diff cpu-avx2 cpu-avx512
    """  # noqa: D301 - click keeps lines as they are after the character \\b
    if context.invoked_subcommand is not None:
        return
    from handoff.infra.commands.conformance import ask_toolchain, show_known

    if shown is not None:
        show_known(target, shown, as_json=as_json)
    else:
        ask_toolchain(target, operators, again=again, as_json=as_json)


@conformance.command(name="diff")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@json_option
@debug_option
def diff_tables(before: str, after: str, as_json: bool) -> None:
    """Say what another toolchain would break, and what it would mend.

    A and B are targets (today's toolchain), the first digits of a kept table's toolchain, or files.

    \b
    handoff conformance diff 3f2a9c cpu-avx512
    handoff conformance diff before.json after.json
    """  # noqa: D301 - as above
    from handoff.infra.commands.conformance import show_changes

    show_changes(before, after, as_json=as_json)


COMMANDS = (conformance,)
