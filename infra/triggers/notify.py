"""`handoff notify`: tell the Prefect server of a new model commit."""

from __future__ import annotations

import re
import time
from pathlib import Path

from handoff.artifacts.delivery.uri import GitSource, absolute_delivery_uri, parse_delivery_uri
from handoff.artifacts.errors import ERRORS, EnvironmentLacking
from handoff.infra.settings import author_name, read_settings
from handoff.infra.terminal.console import print_json
from handoff.infra.terminal.echoing import echo
from handoff.infra.triggers.arrival import Arrival, Policy
from handoff.infra.triggers.posting import Posted, Poster, open_poster

_POLL_S = 2.0
_ERROR_NAME = re.compile(r"\b(" + "|".join(ERRORS) + r")\b")


def read_arrival(
    delivery: str, *, commit: str, model: str, repository: str, by: str, alias: str
) -> Arrival:
    """Return the arrival that the command line describes; a relative path becomes absolute.

    A delivery in a git commit is of that commit, where no other one is named.
    """
    uri = absolute_delivery_uri(delivery, Path.cwd())
    source = parse_delivery_uri(uri)
    if not commit and isinstance(source, GitSource):
        commit, repository = source.commit, repository or source.url
    return Arrival(uri, model, repository, commit.lower(), by or author_name(), alias)


def notify(arrival: Arrival, policy: Policy, *, again: bool, wait: bool, as_json: bool) -> int:
    """Post `arrival`; tell of its run, follow it to its end with `wait`; return the exit code."""
    with open_poster(read_settings()) as poster:
        posted = poster.post(arrival, policy=policy, again=again)
        if not as_json:
            _tell(arrival, posted)
        if wait:
            posted = wait_for_end(poster, posted, quiet=as_json)
    if as_json:
        print_json(_plain(arrival, posted))
    elif wait:
        echo(f"{posted.name}: {posted.state}{_why(posted)}")
    return exit_code(posted) if wait else 0


def exit_code(posted: Posted) -> int:
    """Return the exit code of a run's end: that of the refusal which ended it."""
    if posted.state == "Completed":
        return 0
    refusal = _ERROR_NAME.search(posted.message) if posted.state == "Failed" else None
    return ERRORS[refusal[1]].exit_code if refusal else 1


def _tell(arrival: Arrival, posted: Posted) -> None:
    attempt = f" (attempt {posted.attempt})" if posted.attempt > 1 else ""
    if posted.is_new:
        echo(f"posted {arrival.label}{attempt}: run {posted.name}, {posted.id}")
    else:
        echo(f"{arrival.label} was posted before: run {posted.name}, {posted.state}{attempt}")
        if posted.state in ("Completed", "Failed"):
            echo("--again posts it once more")
    for name in posted.superseded:
        echo(f"cancelled {name}, which is older")
    echo(posted.address)


def _plain(arrival: Arrival, posted: Posted) -> dict[str, object]:
    return {
        "name": posted.name, "id": str(posted.id), "state": posted.state, "new": posted.is_new,
        "attempt": posted.attempt, "key": arrival.key, "address": posted.address,
        "superseded": list(posted.superseded), "message": posted.message,
    }  # fmt: skip


def _why(posted: Posted) -> str:
    return f": {posted.message[:500]}" if posted.message and posted.state != "Completed" else ""


def wait_for_end(poster: Poster, posted: Posted, *, quiet: bool) -> Posted:
    """Return the run when it has ended; a server that is away for a while is waited for."""
    from handoff.flows.children import PATIENCE_S

    crashed_at, told = 0.0, posted.state
    while True:
        try:
            posted = poster.follow(posted)
        except EnvironmentLacking as error:
            if not quiet and told != "away":
                echo(f"handoff: {error}", err=True)
            told = "away"
        else:
            if not quiet and posted.state != told:
                echo(f"{posted.name}: {posted.state}", err=True)
            told = posted.state
            if posted.state != "Crashed":
                crashed_at = 0.0
            crashed_at = crashed_at or time.monotonic()
            if posted.has_ended and (
                posted.state != "Crashed" or time.monotonic() - crashed_at > PATIENCE_S
            ):
                return posted
        time.sleep(_POLL_S)
