"""What is still to be sent, kept in the home: it outlives a receiver's failure, and this process.

Of a subject at most one message an hour is sent. What else comes of it within that hour is sent
together at its end, and many subjects at once are sent together, too: who hears too often reads
nothing. A message that can't be sent is tried again with growing pauses, and is given up after a
day, which the log says.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from handoff.artifacts.errors import EnvironmentLacking, HandoffError
from handoff.artifacts.files.writing import write_atomically
from handoff.artifacts.printable import one_line
from handoff.artifacts.record import RecordInvalid, from_plain, to_plain
from handoff.artifacts.waiting import Backoff
from handoff.infra.notifications.forge import CommitStatus, TemporarilyUnavailable, shorten

LOGGER = logging.getLogger("handoff.tell")
HOUR_S = 3600.0
_GIVEN_UP_AFTER_S = 24 * HOUR_S
# So many messages at one look are sent each for itself; more are sent in one.
_MOST_AT_ONCE = 3
_MOST_LINES = 20
_MOST_WAITING = 1000
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 900.0


@dataclass(frozen=True)
class Message:
    """A short message of a subject: a title, what changed, and when (in s since the epoch)."""

    subject: str
    title: str
    text: str
    at: float


@dataclass(frozen=True)
class PendingStatus:
    """A commit status that is still to be set, since a moment (in s since the epoch)."""

    status: CommitStatus
    at: float


@dataclass(frozen=True)
class Memory:
    """What is kept from one look to the next.

    `runs` are the runs that were reported, with when; `workers` those that were online, by pool and
    name; `sent` when a subject was reported last. Times are in seconds since the epoch.
    """

    since: float = 0.0
    looked: float = 0.0
    runs: dict[str, float] = field(default_factory=dict)
    workers: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    statuses: tuple[PendingStatus, ...] = ()
    sent: dict[str, float] = field(default_factory=dict)


def memory_file(home: Path) -> Path:
    """Return the file of a home's memory of what was reported."""
    return home / "telling" / "memory.json"


def read_memory(file: Path) -> Memory:
    """Return what was kept; nothing where there is no file, or none that can be read."""
    try:
        return from_plain(Memory, json.loads(file.read_text("utf-8")), file.name)
    except FileNotFoundError:
        return Memory()
    except (OSError, ValueError, RecordInvalid) as error:
        LOGGER.warning("messages were lost: %s", one_line(str(error)))
        return Memory()


def write_memory(file: Path, memory: Memory) -> None:
    """Keep it in the place of what was kept; raise `EnvironmentLacking` where that fails."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(file, json.dumps(to_plain(memory)))
    except OSError as error:
        raise EnvironmentLacking(
            "messages that wait to be sent can't be kept", expected=f"room in {file.parent}",
            got=error.strerror or str(error), remedy="Make room there",
        ) from error  # fmt: skip


def enqueue(
    memory: Memory, messages: Iterable[Message] = (), statuses: Iterable[PendingStatus] = ()
) -> Memory:
    """Return the memory with more to send; of a commit's statuses the newest alone counts."""
    statuses_by_commit = {
        (pending.status.repository, pending.status.commit): pending for pending in memory.statuses
    }
    for pending in statuses:
        statuses_by_commit[pending.status.repository, pending.status.commit] = pending
    queued = (*memory.messages, *messages)
    if len(queued) > _MOST_WAITING:
        LOGGER.warning("%d messages are dropped: too many wait", len(queued) - _MOST_WAITING)
    return replace(
        memory,
        messages=queued[-_MOST_WAITING:],
        statuses=tuple(statuses_by_commit.values())[-_MOST_WAITING:],
    )


@dataclass(frozen=True)
class OutgoingMessage:
    """What is sent as one message, and all that it reports."""

    title: str
    text: str
    messages: tuple[Message, ...]


def select_due(memory: Memory, now: float) -> tuple[OutgoingMessage, ...]:
    """Return what may be sent now, a digest where there is much; nothing of it is sent twice."""
    groups: dict[str, list[Message]] = {}
    for message in memory.messages:
        if now - memory.sent.get(message.subject, -HOUR_S) >= HOUR_S:
            groups.setdefault(message.subject, []).append(message)
    if len(groups) > _MOST_AT_ONCE:
        messages = sorted(
            (one for group in groups.values() for one in group), key=lambda one: one.at
        )
        return (_digest(messages, f"Handoff: {len(messages)} messages"),)
    return tuple(
        OutgoingMessage(group[0].title, group[0].text, tuple(group))
        if len(group) == 1
        else _digest(group, f"Handoff: {len(group)} more of {subject}")
        for subject, group in groups.items()
    )


def _digest(messages: list[Message], title: str) -> OutgoingMessage:
    lines = [
        f"- {shorten(message.title, 120)}: {shorten(message.text, 200)}" for message in messages
    ]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [f"and {len(lines) - _MOST_LINES} more"]
    return OutgoingMessage(title, "\n".join(lines), tuple(messages))


class Sender:
    """Sends what is due, and remembers how long to leave a receiver alone."""

    def __init__(
        self,
        send: Callable[[str, str], None] | None,
        post: Callable[[CommitStatus], bool] | None,
    ) -> None:
        """Send messages by `send(title, text)` and statuses by `post`; None: there is no way."""
        self._send, self._post = send, post
        self._messages, self._statuses = _Backoff("a message"), _Backoff("a commit status")

    def send_due(self, memory: Memory, now: float) -> Memory:
        """Send what is due; return what is left. Nothing is raised for a receiver's sake."""
        memory = self._send_messages(memory, now) if self._send else memory
        return self._set_statuses(memory, now) if self._post else memory

    def _send_messages(self, memory: Memory, now: float) -> Memory:
        assert self._send is not None
        for digest in select_due(memory, now) if self._messages.is_over(now) else ():
            try:
                self._send(digest.title, digest.text)
            except HandoffError as error:
                self._messages.fail(error, now)
                break
            self._messages.succeed()
            left = tuple(message for message in memory.messages if message not in digest.messages)
            sent = {**memory.sent, **{message.subject: now for message in digest.messages}}
            recent = {name: at for name, at in sent.items() if now - at < HOUR_S}
            memory = replace(memory, messages=left, sent=recent)
        expired = [message for message in memory.messages if now - message.at > _GIVEN_UP_AFTER_S]
        for message in expired:
            LOGGER.warning("given up, nobody was notified: %s: %s", message.title, message.text)
        return replace(
            memory, messages=tuple(message for message in memory.messages if message not in expired)
        )

    def _set_statuses(self, memory: Memory, now: float) -> Memory:
        assert self._post is not None
        left = list(memory.statuses)
        for pending in memory.statuses if self._statuses.is_over(now) else ():
            what = f"{pending.status.state} of {pending.status.commit[:12]}"
            try:
                if self._post(pending.status):
                    LOGGER.info("commit status: %s", what)
                self._statuses.succeed()
            except TemporarilyUnavailable as error:
                self._statuses.fail(error, now)
                break
            except HandoffError as error:
                LOGGER.warning("no commit status, %s: %s", what, error)
            left.remove(pending)
        expired = [pending for pending in left if now - pending.at > _GIVEN_UP_AFTER_S]
        for pending in expired:
            LOGGER.warning(
                "given up: the status %s of %s", pending.status.state, pending.status.commit
            )
        return replace(
            memory, statuses=tuple(pending for pending in left if pending not in expired)
        )


class _Backoff:
    """How long a receiver that failed is left alone; what it said is logged once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._until = 0.0
        self._last_error = ""

    def is_over(self, now: float) -> bool:
        return now >= self._until

    def fail(self, error: HandoffError, now: float) -> None:
        self._until = now + self._pauses.draw()
        if self._last_error != str(error):
            LOGGER.warning("%s waits, and is tried again: %s", self._what, error)
        self._last_error = str(error)

    def succeed(self) -> None:
        if self._last_error:
            LOGGER.warning("%s goes through again", self._what)
        self._pauses, self._until, self._last_error = (
            Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S),
            0.0,
            "",
        )
