"""A search's race: which inputs it is at, and who is called when."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from handoff.tasks.timing.race import race_in_turns, raced_cases, summarize
from handoff.tasks.verify.loading import Tensors
from handoff.tasks.verify.reference import ReferenceCase, save_cases


def write_cases(folder: Path, **sizes: int) -> Path:
    """Write a reference with a case for each name and size; return its file."""
    cases = [
        ReferenceCase(name.replace("_", "="), (torch.zeros(size),), (), ())
        for name, size in sizes.items()
    ]
    save_cases(cases, folder / "reference.pt")
    return folder / "reference.pt"


def test_it_is_at_the_smallest_size_at_the_first_example_and_at_the_largest(
    tmp_path: Path,
) -> None:
    file = write_cases(tmp_path, seed_0=1, seed_1=64, example_0=8, example_1=16)
    assert [case.inputs[0].numel() for case in raced_cases(file)] == [1, 8, 64]


def test_without_an_example_in_the_plan_the_largest_stands_for_it(tmp_path: Path) -> None:
    file = write_cases(tmp_path, seed_0=1, seed_1=64)
    assert [case.inputs[0].numel() for case in raced_cases(file)] == [1, 64, 64]


def test_each_is_timed_after_a_call_of_its_own_and_who_begins_changes() -> None:
    called: list[str] = []

    def library(name: str) -> Callable[[Tensors], object]:
        def call(inputs: Tensors) -> None:
            called.append(name)

        return call

    seconds = race_in_turns([library("a"), library("b")], (torch.zeros(1),))
    in_turns = "".join(called[8:])  # after three calls each to warm up, and one to see how long
    assert in_turns.startswith("aabbbbaaaabb")
    assert len(seconds[0]) == len(seconds[1]) >= 15


def test_ratios_are_the_plain_one_s_seconds_by_the_variant_s_in_the_same_round() -> None:
    lap = summarize([[1.0, 1.0, 2.0]], [[2.0, 2.0, 6.0]])
    assert lap.ratios == (2.0,)
    assert lap.times_s == (1.0,)
