"""Calls for which there is limited time: the small ones are made, the one that won't end isn't."""

from __future__ import annotations

import math

import pytest
import torch

from handoff.tasks.probe.time_limit import TimeLimitedPackage
from handoff.tasks.verify.loading import Tensors

_SECONDS_A_ROW = 0.01


def rows(count: int) -> Tensors:
    return (torch.ones(count, 4),)


class Clock:
    """A clock that goes on while a call is made, and not otherwise."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def slow(self, inputs: Tensors) -> Tensors:
        self.now_s += _SECONDS_A_ROW * len(inputs[0])
        return (inputs[0] + 1,)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_largest_call_is_the_one_there_is_no_time_for(clock: Clock) -> None:
    timed = TimeLimitedPackage(clock.slow, 1.0, clock)
    made = []
    for count in (1, 2, 7, 17, 1024):
        if timed.has_time_for(rows(count)):
            made.append(count)
            assert torch.equal(timed(rows(count))[0], rows(count)[0] + 1)
    assert made == [1, 2, 7, 17]


def test_without_a_limit_there_is_time_for_all(clock: Clock) -> None:
    timed = TimeLimitedPackage(clock.slow, math.inf, clock)
    timed(rows(1))
    timed(rows(2))
    assert timed.has_time_for(rows(10**6))


def test_the_first_call_is_made_though_there_is_no_time_at_all(clock: Clock) -> None:
    timed = TimeLimitedPackage(clock.slow, 0.0, clock)
    assert timed.has_time_for(rows(1024))
    timed(rows(1))
    assert not timed.has_time_for(rows(1))


def test_what_the_first_call_waits_for_the_start_is_not_expected_of_the_others(
    clock: Clock,
) -> None:
    starts = [0.2]

    def starting(inputs: Tensors) -> Tensors:
        clock.now_s += starts.pop() if starts else 0.0
        return inputs

    timed = TimeLimitedPackage(starting, 2.0, clock)
    timed(rows(1))
    assert timed.has_time_for(rows(64))


def test_a_call_that_fails_takes_its_time_too(clock: Clock) -> None:
    def fails(inputs: Tensors) -> Tensors:
        clock.slow(inputs)
        raise RuntimeError("refused")

    timed = TimeLimitedPackage(fails, 0.05, clock)
    with pytest.raises(RuntimeError):
        timed(rows(7))
    assert not timed.has_time_for(rows(1))
