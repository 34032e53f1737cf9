"""A step of a run, after which the next one is tried, whatever became of it."""

from __future__ import annotations

from collections.abc import Callable

from tests.studies.containers.seen import ResultLog, Row


def went_well(seen: ResultLog, what: str, attempt: Callable[[Row], None]) -> bool:
    """Return whether it did; if not, its row says why, and the run ends with 1."""
    try:
        with seen.trying(what) as row:
            attempt(row)
    except Exception as error:  # noqa: BLE001 - the row has it, and what comes after is tried
        seen.log.say(f"goes on after {what}: {type(error).__name__}")
        return False
    return True
