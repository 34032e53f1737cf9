"""The seconds of a release's steps, from the lines that the command writes to standard error."""

from __future__ import annotations

import re

_STEP = re.compile(r"^(?P<step>[a-z][a-z0-9 -]*): (?P<seconds>\d+\.\d) s", re.MULTILINE)


def step_seconds(stderr: str) -> dict[str, float]:
    """Return each kind of step's seconds, those of all targets together."""
    seconds: dict[str, float] = {}
    for found in _STEP.finditer(stderr):
        verb = found["step"].split(" cpu-")[0]
        seconds[verb] = seconds.get(verb, 0.0) + float(found["seconds"])
    return seconds
