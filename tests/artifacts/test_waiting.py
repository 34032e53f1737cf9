"""Pauses grow up to a longest and a limit, and looking at something ends in time."""

from __future__ import annotations

import time

import pytest

from handoff.artifacts.waiting import Backoff, poll_for


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now_s)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


def test_pauses_grow_up_to_the_longest(clock: Clock) -> None:
    pauses = Backoff(1.0, 5.0, cut=0.0)
    for _ in range(5):
        pauses.take()
    assert clock.slept_s == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert pauses.waited_s == 17.0


def test_pauses_grow_by_what_is_asked_for(clock: Clock) -> None:
    pauses = Backoff(1.0, growth=1.5, cut=0.0)
    for _ in range(3):
        pauses.take()
    assert clock.slept_s == [1.0, 1.5, 2.25]


@pytest.mark.parametrize("cut", [0.5, 1.0])
def test_each_pause_is_cut_at_random_and_by_no_more_than_its_share(
    clock: Clock, cut: float
) -> None:
    pauses = Backoff(8.0, 8.0, cut=cut)
    for _ in range(1000):
        pauses.take()
    least, most = 8.0 * (1 - cut), 8.0
    assert all(least <= slept_s <= most for slept_s in clock.slept_s)
    # Of a thousand, all in one half of the range would be no chance.
    middle = (least + most) / 2
    assert min(clock.slept_s) < middle < max(clock.slept_s)


def test_pauses_are_over_where_the_next_one_might_end_beyond_the_limit(clock: Clock) -> None:
    pauses = Backoff(1.0, cut=0.0, limit_s=7.5)
    taken = 0
    while not pauses.are_over:
        pauses.take()
        taken += 1
    assert (taken, pauses.waited_s, pauses.next_s) == (3, 7.0, 8.0)


def test_what_the_tries_themselves_take_counts_too(clock: Clock) -> None:
    pauses = Backoff(1.0, limit_s=10.0)
    clock.now_s += 9.5
    assert pauses.are_over


def test_a_pause_is_no_longer_than_what_is_left(clock: Clock) -> None:
    Backoff(8.0).take(0.25)
    assert clock.slept_s == [0.25]


def test_looks_come_at_once_and_then_in_even_pauses_until_the_limit(clock: Clock) -> None:
    times_s = [clock.now_s - 100.0 for _ in poll_for(1.0, 0.5)]
    assert times_s == [0.0, 0.5, 1.0, 1.5]


def test_without_time_there_is_one_look_and_no_pause(clock: Clock) -> None:
    for _ in poll_for(0.0, 0.5):
        clock.now_s += 0.001
    assert clock.slept_s == []


def test_who_has_seen_enough_waits_no_more(clock: Clock) -> None:
    for _ in poll_for(60.0, 0.5):
        break
    assert clock.slept_s == []
