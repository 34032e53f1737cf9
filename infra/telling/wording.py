"""What is said: of a release that ended, of a night, of a worker that left; each in a few words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from handoff.artifacts.errors import (
    ERRORS,
    BlessingRefused,
    BuildCrashed,
    DeliveryUnreadable,
    DeliveryUnsound,
    NotShownYet,
    UsageProblem,
)
from handoff.artifacts.nightly.night import ALARMING, Night, NightRow
from handoff.artifacts.printable import one_line
from handoff.infra.telling.forge import State, shortened

_ENCOUNTERED = re.compile(r"^Flow run encountered an exception:? *")
_NAMED = re.compile(r"^(" + "|".join(ERRORS) + r"): (.*)$", re.DOTALL)
# What the delivery itself is refused for; all else is the machine's, or a server's.
_REFUSALS = (BlessingRefused, DeliveryUnreadable, DeliveryUnsound, UsageProblem)
_LONGEST_SENTENCE = 600
_LONGEST_ROW = 300
_MOST_ROWS = 10


@dataclass(frozen=True)
class Told:
    """What is said of an end: for a status its state, for people a title where they are told."""

    state: State
    text: str
    title: str = ""


def told_release(label: str, state: str, message: str, released: str) -> Told:
    """Return what is said of a release that ended in `state`, as Prefect names its types.

    `message` is the state's, and `released` what its report is headed with, if it has one.
    """
    if state == "COMPLETED":
        return Told("success", released.replace("*", "") or "Released; it was made before.")
    kind, sentence = read_sentence(message)
    error = ERRORS.get(kind)
    if state == "CANCELLED":
        return Told("error", f"Cancelled: {sentence}" if sentence else "Cancelled.")
    if error is NotShownYet:
        # The ledger has it, and MLflow is told later.
        return Told("success", sentence)
    if state == "CRASHED":
        what = f"crashed, and is not tried again: {sentence}"
        return Told("error", f"It {what}", f"Handoff: the release of {label} crashed")
    if error and issubclass(error, _REFUSALS) and not issubclass(error, BuildCrashed):
        return Told("failure", sentence, f"Handoff: {label} was refused")
    return Told("error", sentence or kind or "no reason", f"Handoff: the release of {label} failed")


def read_sentence(message: str) -> tuple[str, str]:
    """Return the name of the refusal that a state's message tells, "" for none, and its words."""
    rest = _ENCOUNTERED.sub("", message.strip())
    found = _NAMED.match(rest)
    kind, sentence = (found[1], found[2]) if found else ("", rest)
    return kind, one_line(" ".join(sentence.split()))


def cut(sentence: str) -> str:
    """Return a sentence as short as a message takes it."""
    return shortened(sentence, _LONGEST_SENTENCE)


def told_night(night: Night) -> tuple[str, str] | None:
    """Return title and text of a night that kept or lost something; None where nothing happened."""
    rows = [row for row in night.rows if row.outcome == "kept" or row.outcome in ALARMING]
    if not rows:
        return None
    lost = [row for row in rows if row.is_lost]
    counts = [f"{len(lost)} lost"] if lost else []
    for outcome in ("kept", *sorted(ALARMING)):
        if number := sum(row.outcome == outcome and row not in lost for row in rows):
            counts.append(f"{number} {outcome}")
    title = f"Handoff: the night of {night.date}: {', '.join(counts)} of {len(night.rows)} models"
    lines = [_line(row) for row in (*lost, *(row for row in rows if row not in lost))]
    return title, "\n".join(_few(lines))


def _line(row: NightRow) -> str:
    why = shortened(row.why, _LONGEST_ROW)
    if row.outcome == "kept":
        return f"{row.model}: version {row.old} stays, {row.new} is kept back: {why}"
    return f"{row.model}: {'lost' if row.is_lost else row.outcome}: {why}"


def _few(lines: list[str]) -> Iterable[str]:
    more = len(lines) - _MOST_ROWS
    return (*lines[:_MOST_ROWS], *([f"and {more} more"] if more > 0 else []))


def told_worker(name: str, pool: str, others: int) -> tuple[str, str]:
    """Return title and text of a worker that left, with how many others are online in its pool."""
    left = f"{others} other{'s' * (others != 1)} online there" if others else (
        "nobody works for that pool now: what is posted to it waits"
    )  # fmt: skip
    return (
        f"Handoff: the worker {one_line(name)} left",
        f"It was online in the pool {one_line(pool)}, and isn't any more; {left}.",
    )
