"""The command that notifies people."""

from __future__ import annotations

import click

from handoff.infra.cli.group import debug_option


@click.command(name="tell")
@click.option("--test", "is_test", is_flag=True, help="Send a test message, and end.")
@click.option("--repository", default="", help="With --test: set a status on a commit of it, too.")
@click.option("--commit", default="", help="With --test: that commit, with all its digits.")
@click.option(
    "--every", default=15.0, show_default=True, type=click.FloatRange(1, 3600),
    help="Seconds between two looks.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Look once, send what is due, and end.")
@debug_option
def notify_people(*, is_test: bool, repository: str, commit: str, every: float, once: bool) -> None:
    """Notify people: commit statuses, and messages through a Prefect notification block.

    It reports refused releases, nights that kept, lost or broke a model, and workers that left.
    HANDOFF_NOTIFY and HANDOFF_FORGE name the receivers; with these set 'handoff up' runs it.

    \b
    handoff tell --test
    handoff tell --test --repository https://github.com/team/toy --commit $(git rev-parse HEAD)
    """  # noqa: D301 - click keeps lines as they are after the character \\b
    from handoff.artifacts.errors import UsageProblem
    from handoff.infra.notifications import notifier

    if not is_test and (repository or commit):
        raise UsageProblem(
            "tell takes a commit for a test alone", expected="--test with it",
            got="--repository or --commit without", remedy="See 'handoff tell --help'",
        )  # fmt: skip
    if is_test:
        notifier.send_test(repository, commit)
        return
    raise click.exceptions.Exit(notifier.run_notifier(every, once=once))


COMMANDS = (notify_people,)
