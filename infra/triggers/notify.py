"""`handoff notify`: tell the Prefect server of a new model commit."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from handoff.artifacts.delivery.uri import GitSource, absolute_delivery_uri, parse_delivery_uri
from handoff.artifacts.errors import ERRORS, EnvironmentLacking, HandoffError
from handoff.artifacts.waiting import Backoff
from handoff.infra.settings import Settings, author_name, read_settings
from handoff.infra.terminal.console import print_json
from handoff.infra.terminal.output import echo
from handoff.infra.triggers.arrival import Arrival, Policy
from handoff.infra.triggers.poster import PostedRun, Poster, open_poster
from handoff.infra.triggers.spool import Spool, SpooledArrival

_POLL_S = 2.0
# A git server's hook is waited for.
_SOON_S = 8.0
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
    """Post `arrival`; print its run, follow it to its end with `wait`; return the exit code."""
    with open_poster(read_settings()) as poster:
        posted = poster.post(arrival, policy=policy, again=again)
        if not as_json:
            _print_posted(arrival, posted)
        if wait:
            posted = wait_for_end(poster, posted, quiet=as_json)
    if as_json:
        print_json(_posted_object(arrival, posted))
    elif wait:
        echo(f"{posted.name}: {posted.state}{_format_reason(posted)}")
    return exit_code(posted) if wait else 0


def keep_and_post(arrival: Arrival, policy: Policy, *, as_json: bool) -> int:
    """Keep `arrival` on disk, and post it if the server answers soon; return 0 in either case.

    Raises `EnvironmentLacking` where it can't be kept: nothing is accepted then.
    """
    settings = read_settings()
    spool = Spool(settings.home)
    entry = spool.keep(arrival, policy)
    posted = _post_within_limit(settings, spool, entry)
    if as_json:
        print_json({"kept": arrival.key} if posted is None else _posted_object(arrival, posted))
    elif posted is None:
        echo(f"kept {arrival.label}: the Prefect server doesn't answer. 'handoff notify --kept' "
             "posts it, and so does the next 'handoff notify --keep' or the webhook")  # fmt: skip
    else:
        _print_posted(arrival, posted)
    return 0


def _post_within_limit(settings: Settings, spool: Spool, entry: SpooledArrival) -> PostedRun | None:
    """Return the run of what is kept, or None where the server takes too long or can't be asked."""
    done: list[PostedRun | HandoffError | None] = []

    def deliver() -> None:
        try:
            with open_poster(settings) as poster:
                done.append(spool.deliver(_posting_by(poster), entry))
        except HandoffError as error:
            done.append(error)

    # Whoever pushes waits for the hook: what hangs is left behind, and ends with this process.
    thread = threading.Thread(target=deliver, daemon=True)
    thread.start()
    thread.join(_SOON_S)
    outcome = done[0] if done else None
    if isinstance(outcome, HandoffError) and not isinstance(outcome, EnvironmentLacking):
        raise outcome
    return outcome if isinstance(outcome, PostedRun) else None


def _posting_by(poster: Poster) -> Callable[[Arrival, Policy], PostedRun]:
    return lambda arrival, policy: poster.post(arrival, policy=policy, once=True)


def post_kept(*, wait: bool, as_json: bool) -> int:
    """Post what was kept; with `wait` again and again until nothing waits. Return the exit code.

    0 where nothing waits any more. What was set aside, because the server refuses it for good, is
    printed.
    """
    settings = read_settings()
    spool = Spool(settings.home)
    before = len(spool.list_waiting())
    pauses = Backoff(1.0, 60.0)
    code = 0
    while spool.list_waiting():
        try:
            with open_poster(settings) as poster:
                spool.deliver(_posting_by(poster))
        except HandoffError as error:
            code = error.exit_code
            if not wait:
                echo(f"handoff: {error}", err=True)
                break
            pauses.take()
        else:
            code = 0
    waiting = spool.list_waiting()
    rejected = spool.list_set_aside()
    if as_json:
        print_json({
            "waiting": [f"{entry.arrival.label}, since {entry.since}" for entry in waiting],
            "set_aside": [f"{entry.what}: {entry.why}" for entry in rejected],
        })  # fmt: skip
        return code
    echo(f"{before - len(waiting)} posted, {len(waiting)} wait")
    for entry in rejected:
        echo(f"set aside: {entry.what}: {entry.why}")
    return code


def exit_code(posted: PostedRun) -> int:
    """Return the exit code of a run's end: that of the refusal which ended it."""
    if posted.state == "Completed":
        return 0
    refusal = _ERROR_NAME.search(posted.message) if posted.state == "Failed" else None
    return ERRORS[refusal[1]].exit_code if refusal else 1


def _print_posted(arrival: Arrival, posted: PostedRun) -> None:
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


def _posted_object(arrival: Arrival, posted: PostedRun) -> dict[str, object]:
    return {
        "name": posted.name, "id": str(posted.id), "state": posted.state, "new": posted.is_new,
        "attempt": posted.attempt, "key": arrival.key, "address": posted.address,
        "superseded": list(posted.superseded), "message": posted.message,
    }  # fmt: skip


def _format_reason(posted: PostedRun) -> str:
    return f": {posted.message[:500]}" if posted.message and posted.state != "Completed" else ""


def wait_for_end(poster: Poster, posted: PostedRun, *, quiet: bool) -> PostedRun:
    """Return the run when it has ended; a server that is away for a while is waited for."""
    from handoff.flows.children import PATIENCE_S

    crashed_at, last_state = 0.0, posted.state
    while True:
        try:
            posted = poster.follow(posted)
        except EnvironmentLacking as error:
            if not quiet and last_state != "away":
                echo(f"handoff: {error}", err=True)
            last_state = "away"
        else:
            if not quiet and posted.state != last_state:
                echo(f"{posted.name}: {posted.state}", err=True)
            last_state = posted.state
            if posted.state != "Crashed":
                crashed_at = 0.0
            crashed_at = crashed_at or time.monotonic()
            if posted.has_ended and (
                posted.state != "Crashed" or time.monotonic() - crashed_at > PATIENCE_S
            ):
                return posted
        time.sleep(_POLL_S)
