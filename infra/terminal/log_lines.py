"""The log of a command that goes on: one line a record, on stderr, whatever others wrote."""

from __future__ import annotations

import logging

from handoff.artifacts.printable import one_line


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
