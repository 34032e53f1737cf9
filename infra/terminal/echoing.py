"""How commands print, and log where they go on: whatever is printed is printable."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

from handoff.artifacts.printable import one_line, printable


class Styled(str):
    """Text that is printable already, and holds the colours that we have given it."""

    __slots__ = ()


def styled(text: str, **style: Any) -> Styled:  # noqa: ANN401 - click's own words
    """Return text in a colour, or bold, where the terminal has that."""
    return Styled(click.style(printable(text), **style))


def echo(*parts: str, err: bool = False, nl: bool = True) -> None:
    """Print the parts as one text; on standard error with `err`, without a line's end unless `nl`.

    What would move a terminal's cursor, or hide, is written out.
    """
    shown = (part if isinstance(part, Styled) else printable(part) for part in parts)
    click.echo("".join(shown), err=err, nl=nl)


def ask(question: str, default: str | None) -> str:
    """Ask on standard error until there is an answer; Enter takes the default."""
    told = None if default is None else printable(default)
    answer: str = click.prompt(printable(question), default=told, err=True)
    return answer


def on_terminal() -> bool:
    """Tell whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class OneLine(logging.Formatter):
    """A record is one line, whatever a sender wrote."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record in one line."""
        return one_line(super().format(record))


def log_lines(logger: logging.Logger) -> None:
    """Let a logger write its records to stderr, with their time, and to nobody else."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
