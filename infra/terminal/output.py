"""How commands print, and log where they go on: whatever is printed is printable."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import click

from handoff.artifacts.printable import one_line, printable, printable_json


class StyledText(str):
    """Text that is printable already, and holds the colours that we have given it."""

    __slots__ = ()


def styled(text: str, **style: Any) -> StyledText:  # noqa: ANN401 - click's own words
    """Return text in a colour, or bold, where the terminal has that."""
    return StyledText(click.style(printable(text), **style))


def echo(*parts: str, err: bool = False, nl: bool = True) -> None:
    """Print the parts as one text; on standard error with `err`, without a line's end unless `nl`.

    What would move a terminal's cursor, or hide, is written out.
    """
    texts = (part if isinstance(part, StyledText) else printable(part) for part in parts)
    click.echo("".join(texts), err=err, nl=nl)


def ask(question: str, default: str | None) -> str:
    """Ask on standard error until there is an answer; Enter takes the default."""
    shown_default = None if default is None else printable(default)
    answer: str = click.prompt(printable(question), default=shown_default, err=True)
    return answer


def ask_secret(question: str) -> str:
    """Ask on standard error for what nobody is to see while it is typed."""
    answer: str = click.prompt(printable(question), hide_input=True, err=True)
    return answer


def on_terminal() -> bool:
    """Return whether there is somebody to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class OneLineFormatter(logging.Formatter):
    """A record is one line, whatever a sender wrote."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record in one line."""
        return one_line(super().format(record))


# What progress adds to its records.
_EXTRA_FIELDS = ("step", "phase", "seconds", "does")


class JsonFormatter(logging.Formatter):
    """A record is one object in JSON: `time` in UTC, `level`, `logger`, `message`.

    Those of progress have `step`, `phase`, `seconds` and `does`, too, and those of an exception
    `trace`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, in one line."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {
            name: getattr(record, name) for name in _EXTRA_FIELDS if getattr(record, name, "") != ""
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return printable_json(json.dumps(fields, ensure_ascii=False))


def log_lines(logger: logging.Logger) -> None:
    """Let a logger write its records to stderr, with their time, and to nobody else.

    Raises `UsageProblem` for a form of log that there isn't.
    """
    from handoff.infra.settings import wants_json_logs

    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter() if wants_json_logs() else OneLineFormatter("%(asctime)s %(message)s")
    )
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
