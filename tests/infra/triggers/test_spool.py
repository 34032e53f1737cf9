"""What is accepted is kept until it is posted: once, in order, whatever dies in between."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.infra.triggers import spool as spooling
from handoff.infra.triggers.arrival import Arrival, Policy
from handoff.infra.triggers.poster import PostedRun
from handoff.infra.triggers.spool import Spool, SpooledArrival

AWAY = EnvironmentLacking("the server is away", expected="a", got="b", remedy="c")
REFUSED = UsageProblem("the server refuses it", expected="a", got="b", remedy="c")


def arrival(number: int, model: str = "toy") -> Arrival:
    return Arrival(f"/data/{number}", model, commit=f"{number:040x}", by="ada")


class Server:
    """What posts: it makes one run a key, and fails as a test wants it to."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.asked = 0
        self.fails: Callable[[Arrival], Exception | None] = lambda _: None

    def post(self, posted: Arrival, policy: Policy) -> PostedRun:
        self.asked += 1
        if error := self.fails(posted):
            raise error
        is_new = posted.key not in self.runs
        if is_new:
            self.runs.append(posted.key)
        return PostedRun(posted.key, uuid.UUID(int=1), "Scheduled", is_new, 1, "http://x")


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


def keys(*numbers: int) -> list[str]:
    return [arrival(number).key for number in numbers]


def test_what_is_kept_is_posted_oldest_first_and_then_forgotten(
    spool: Spool, server: Server
) -> None:
    for number in (3, 1, 2):
        spool.keep(arrival(number), "supersede")
    assert [one.policy for one in spool.list_waiting()] == ["supersede"] * 3
    assert spool.deliver(server.post) is None
    assert server.runs == keys(3, 1, 2)
    assert spool.list_waiting() == ()


def test_one_commit_waits_once_however_often_it_is_announced(spool: Spool, server: Server) -> None:
    names = {spool.keep(arrival(1), "queue").name for _ in range(5)}
    assert len(names) == len(spool.list_waiting()) == 1
    spool.deliver(server.post)
    spool.keep(arrival(1), "queue")
    spool.deliver(server.post)
    assert server.runs == keys(1)


def test_who_waits_gets_its_own_run_and_older_ones_go_first(spool: Spool, server: Server) -> None:
    first, second, third = (spool.keep(arrival(number), "queue") for number in (1, 2, 3))
    posted = spool.deliver(server.post, second)
    assert posted is not None
    assert posted.name == second.arrival.key
    assert server.runs == keys(1, 2)
    assert spool.list_waiting() == (third,)
    # Another process has posted it: its run is found.
    again = spool.deliver(server.post, first)
    assert again is not None
    assert (again.name, again.is_new) == (first.arrival.key, False)


def test_a_server_that_is_away_loses_nothing_and_is_asked_twice_at_most(
    spool: Spool, server: Server
) -> None:
    for number in range(20):
        spool.keep(arrival(number, f"toy-{number}"), "queue")
    server.fails = lambda _: AWAY
    with pytest.raises(EnvironmentLacking, match="is away"):
        spool.deliver(server.post)
    assert server.asked == 2
    assert len(spool.list_waiting()) == 20
    server.fails = lambda _: None
    spool.deliver(server.post)
    assert len(server.runs) == 20


def test_one_model_that_fails_holds_no_other_up_and_keeps_its_order(
    spool: Spool, server: Server
) -> None:
    for number, model in enumerate(("bad", "bad", "good", "fine")):
        spool.keep(arrival(number, model), "queue")
    server.fails = lambda each: AWAY if each.model == "bad" else None
    with pytest.raises(EnvironmentLacking, match="is away"):
        spool.deliver(server.post)
    assert [one.arrival.model for one in spool.list_waiting()] == ["bad", "bad"]
    server.fails = lambda _: None
    spool.deliver(server.post)
    assert server.runs[-2:] == [arrival(0, "bad").key, arrival(1, "bad").key]


def test_what_is_refused_for_good_is_set_aside_with_the_reason(
    spool: Spool, server: Server
) -> None:
    for number in (1, 2, 3):
        spool.keep(arrival(number), "queue")
    server.fails = lambda each: REFUSED if each == arrival(2) else None
    spool.deliver(server.post)
    assert server.runs == keys(1, 3)
    assert spool.list_waiting() == ()
    (aside,) = spool.list_set_aside()
    assert aside.what == arrival(2).label
    assert "the server refuses it" in aside.why


def test_who_waits_is_told_of_a_refusal_and_it_is_not_kept(spool: Spool, server: Server) -> None:
    kept = spool.keep(arrival(1), "queue")
    server.fails = lambda _: REFUSED
    with pytest.raises(UsageProblem, match="refuses it"):
        spool.deliver(server.post, kept)
    assert (spool.list_waiting(), spool.list_set_aside()) == ((), ())


def test_a_file_that_is_damaged_is_set_aside_and_holds_nobody_up(
    spool: Spool, server: Server, tmp_path: Path
) -> None:
    damaged = spool.keep(arrival(1), "queue")
    spool.keep(arrival(2), "queue")
    for text in ("", "{", '{"arrival": {}}', '{"arrival": {"delivery": "ftp://x"}}'):
        (tmp_path / "spool" / damaged.name).write_text(text)
        assert [one.arrival for one in spool.list_waiting()] == [arrival(2)]
        assert spool.list_set_aside()[0].what == "what can't be read"
    spool.deliver(server.post)
    assert server.runs == keys(2)


def test_what_can_not_be_kept_is_not_accepted(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spooling, "_MOST", 2)
    for number in (1, 2):
        spool.keep(arrival(number), "queue")
    with pytest.raises(EnvironmentLacking, match="no more commits can be kept"):
        spool.keep(arrival(3), "queue")
    # One that waits already is no more.
    spool.keep(arrival(2), "queue")
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentLacking, match="it was not accepted"):
        Spool(tmp_path / "file").keep(arrival(1), "queue")


def test_it_is_closed_to_others(spool: Spool, tmp_path: Path) -> None:
    kept = spool.keep(arrival(1), "queue")
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "spool" / kept.name).stat().st_mode & 0o777 == 0o600


def test_nothing_was_ever_kept(spool: Spool, server: Server) -> None:
    assert (spool.list_waiting(), spool.list_set_aside(), spool.deliver(server.post)) == (
        (),
        (),
        None,
    )


def _die_while_posting(home: Path) -> None:
    def post(_: Arrival, __: Policy) -> PostedRun:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    Spool(home).deliver(post)


def test_a_process_that_is_killed_while_it_posts_loses_nothing_and_holds_nothing(
    spool: Spool, server: Server, tmp_path: Path
) -> None:
    spool.keep(arrival(1), "queue")
    process = multiprocessing.get_context("fork").Process(
        target=_die_while_posting, args=(tmp_path,)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    spool.deliver(server.post)
    assert server.runs == keys(1)


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["keep", "deliver", "away", "back", "again"]), st.integers(0, 5)),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_whatever_happens_each_accepted_commit_is_posted_once_and_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    spool, server = Spool(tmp_path_factory.mktemp("spool")), Server()
    accepted: list[str] = []
    kept: dict[int, SpooledArrival] = {}
    for step, number in steps:
        match step:
            case "keep":
                kept[number] = spool.keep(arrival(number), "queue")
                if arrival(number).key not in accepted:
                    accepted.append(arrival(number).key)
            case "away":
                server.fails = lambda _: AWAY
            case "back":
                server.fails = lambda _: None
            case _:
                with contextlib.suppress(EnvironmentLacking):
                    spool.deliver(server.post, kept.get(number) if step == "again" else None)
    server.fails = lambda _: None
    spool.deliver(server.post)
    assert server.runs == accepted
    assert spool.list_waiting() == ()
