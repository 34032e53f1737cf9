"""What is to be sent: one message an hour of a subject, a digest of the rest, and nothing lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.errors import EnvironmentLacking
from handoff.infra.notifications.forge import CommitStatus, State, TemporarilyUnavailable
from handoff.infra.notifications.outbox import (
    Memory,
    Message,
    PendingStatus,
    Sender,
    enqueue,
    read_memory,
    select_due,
    write_memory,
)

HOUR = 3600.0
DOWN = EnvironmentLacking("the receiver is down", expected="a", got="b", remedy="c")


def message(subject: str = "release toy", at: float = 0.0, text: str = "why") -> Message:
    return Message(subject, f"Handoff: {subject}", text, at)


def status(state: State = "failure", commit: str = "a" * 40) -> PendingStatus:
    return PendingStatus(CommitStatus("team/toy", commit, state, "no"), 0.0)


class Receiver:
    """What takes messages and statuses, or fails as a test wants it."""

    def __init__(self) -> None:
        self.took: list[tuple[str, str]] = []
        self.statuses: list[CommitStatus] = []
        self.asked = 0
        self.error: EnvironmentLacking | None = None

    def send(self, title: str, text: str) -> None:
        self.asked += 1
        if self.error:
            raise self.error
        self.took.append((title, text))

    def post(self, commit_status: CommitStatus) -> bool:
        self.asked += 1
        if self.error:
            raise self.error
        self.statuses.append(commit_status)
        return True


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def sender(receiver: Receiver) -> Sender:
    return Sender(receiver.send, receiver.post)


def test_of_a_subject_one_message_an_hour_is_sent_and_then_a_digest(
    sender: Sender, receiver: Receiver
) -> None:
    memory = sender.send_due(enqueue(Memory(), [message()]), 10)
    assert receiver.took == [("Handoff: release toy", "why")]
    for number in range(3):
        memory = enqueue(memory, [message(at=100 + number, text=f"why {number}")])
        memory = sender.send_due(memory, 100 + number)
    memory = sender.send_due(memory, 9 + HOUR)
    assert len(receiver.took) == 1
    memory = sender.send_due(memory, 10 + HOUR)
    title, text = receiver.took[1]
    assert title == "Handoff: 3 more of release toy"
    assert text.splitlines() == [f"- Handoff: release toy: why {number}" for number in range(3)]
    assert memory.messages == ()
    memory = sender.send_due(enqueue(memory, [message(at=HOUR + 99)]), HOUR + 99)
    assert len(receiver.took) == 2, "an hour begins anew with the digest"


def test_a_subject_of_any_text_is_told_once(sender: Sender, receiver: Receiver) -> None:
    memory = sender.send_due(enqueue(Memory(), [message("worker a\nb\x00")]), 0)
    assert (len(receiver.took), memory.messages) == (1, ())
    memory = sender.send_due(enqueue(memory, [message("worker a\nb\x00", at=1)]), 1)
    assert len(receiver.took) == 1


def test_other_subjects_are_not_held_up_and_many_at_once_are_told_in_one(
    sender: Sender, receiver: Receiver
) -> None:
    memory = sender.send_due(enqueue(Memory(), [message("a"), message("b")]), 0)
    assert [title for title, _ in receiver.took] == ["Handoff: a", "Handoff: b"]
    memory = enqueue(memory, [message(f"m{number}", at=number) for number in range(30)])
    memory = sender.send_due(memory, 60)
    title, text = receiver.took[2]
    assert title == "Handoff: 30 messages"
    assert len(text.splitlines()) == 21
    assert text.endswith("and 10 more")
    assert (memory.messages, len(receiver.took)) == ((), 3)


def test_a_receiver_that_is_down_loses_nothing_and_is_left_alone_meanwhile(
    sender: Sender, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.error = DOWN
    memory = enqueue(Memory(), [message()])
    for second in range(0, 3600, 15):
        memory = sender.send_due(memory, second)
    assert 3 < receiver.asked < 20
    assert caplog.text.count("is tried again: the receiver is down") == 1
    receiver.error = None
    memory = sender.send_due(memory, 2 * HOUR)
    assert receiver.took == [("Handoff: release toy", "why")]
    assert memory.messages == ()
    assert "goes through again" in caplog.text


def test_after_a_day_it_is_given_up_and_the_log_has_it(
    sender: Sender, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.error = DOWN
    memory = enqueue(Memory(), [message()])
    assert sender.send_due(memory, 24 * HOUR).messages == memory.messages
    assert sender.send_due(memory, 24 * HOUR + 1).messages == ()
    assert "given up, nobody was notified: Handoff: release toy: why" in caplog.text


def test_of_a_commits_statuses_the_newest_is_set_once_its_server_is_back(
    sender: Sender, receiver: Receiver
) -> None:
    receiver.error = TemporarilyUnavailable("away", expected="a", got="b", remedy="c")
    memory = sender.send_due(enqueue(Memory(), (), [status("pending")]), 0)
    memory = enqueue(memory, (), [status("failure"), status("pending", "b" * 40)])
    assert len(memory.statuses) == 2
    receiver.error = None
    memory = sender.send_due(memory, HOUR)
    assert [(one.state, one.commit[0]) for one in receiver.statuses] == [
        ("failure", "a"), ("pending", "b"),
    ]  # fmt: skip
    assert memory.statuses == ()


def test_what_a_server_refuses_for_good_is_logged_and_holds_nothing_up(
    sender: Sender, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.error = DOWN
    memory = enqueue(Memory(), (), [status(), status(commit="b" * 40)])
    assert sender.send_due(memory, 0).statuses == ()
    assert caplog.text.count("no commit status, failure of") == 2


def test_what_waits_outlives_the_process(tmp_path: Path) -> None:
    file = tmp_path / "telling" / "memory.json"
    assert read_memory(file) == Memory()
    memory = enqueue(Memory(1.5, 2.5, {"x": 3.0}, ("pool/name",)), [message()], [status()])
    memory = replace(memory, sent={"release toy": 4.0})
    write_memory(file, memory)
    assert read_memory(file) == memory
    assert file.stat().st_mode & 0o077 == 0


def test_what_cant_be_read_is_forgotten_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "memory.json"
    for text in ("{", "[]", '{"since": "x"}'):
        file.write_text(text)
        assert read_memory(file) == Memory()
    assert caplog.text.count("messages were lost") == 3


def test_nothing_is_due_where_nothing_waits() -> None:
    assert select_due(Memory(), 0) == ()
    assert len(select_due(enqueue(Memory(), [message()]), 0)) == 1
