"""How commands print: the one place, so that whatever is printed is printable (`artifacts`)."""

from __future__ import annotations

import sys
from typing import Any

import click

from handoff.artifacts.printable import printable


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
