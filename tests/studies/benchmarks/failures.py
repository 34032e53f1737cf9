"""What can't be made or run, described in one line: in a benchmark that is a result, too."""

from __future__ import annotations

import re

# Runtimes begin with the place in their source.
_SOURCE_LINE = re.compile(r"(Exception from \S+|Check .* failed at \S+|[\w/.]+\.(cpp|py)):\d*:?")
_MAX_LENGTH = 300


class NotMadeError(Exception):
    """A competitor can't be made of this model; the message is its own."""


def describe_failure(failure: BaseException) -> str:
    """Return the first lines of what a failure says that say something."""
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
    informative = [line for line in lines if not _SOURCE_LINE.fullmatch(line)]
    text = " ".join(informative or lines)
    kind = "" if isinstance(failure, NotMadeError) else f"{type(failure).__name__}: "
    return f"{kind}{text}"[:_MAX_LENGTH]
