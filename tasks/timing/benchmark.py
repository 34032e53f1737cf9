"""Benchmark: the package against eager, call by call in turns, with an interval."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from handoff.artifacts.release.evidence import BUSY, EXAMPLE, Timing
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.timing.conditions import BackgroundLoad
from handoff.tasks.timing.messages import BenchmarkJob, BenchmarkResult
from handoff.tasks.verify.float64 import flatten_tensors
from handoff.tasks.verify.loading import (
    SHARED_LIBRARY,
    Tensors,
    clone_inputs,
    device_of,
    open_shared_library,
)
from handoff.tasks.verify.reference import ReferenceCase, load_cases

_MAX_ROUNDS = 60
# With fewer, no interval of theirs holds the median with 95 %. So many have to do where calls take
# long: a gigabyte of weights at a batch of 1024 was timed for two minutes with nine.
LEAST_ROUNDS = 6
# After so many rounds an interval that is narrow already ends them. One that may be looked at
# five times, and ends what it is of, held the median in 94 to 98 % of 3000 simulated runs each of
# twelve kinds (normal, skewed and long-tailed ratios, whose spread is 0.5 to 4 %).
_CHECKPOINTS = (6, 9, 15, 24, 40)
_NARROW = 1.04
# Not before so many seconds: what a machine does changes more slowly than short calls follow.
_LEAST_S = 0.3
# Seconds for the smallest and the largest input, and for each of those between, which are there
# for the curve. A promotion that has only records to go by compares all of them.
_BUDGET_S = 3.0
_BUDGET_BETWEEN_S = 1.0
# After what other work blurred: it may have ended by then.
_PAUSE_S = 2.0
_BETWEEN = 2
# Sizes of less than this ratio say the same of a curve.
_SIMILAR = 1.25


def run(job: BenchmarkJob) -> BenchmarkResult:
    """Time eager and the shared library on the delivery's example and the plan's sizes.

    Those are its smallest and its largest inputs, and two between.
    """
    device = device_of(job.target)
    module = read_delivery(job.staging).module.to(device)
    library = open_shared_library(job.folder / SHARED_LIBRARY, device)
    apart, timings = 0.0, []
    cases = cases_with_example(load_cases(job.reference), between=_BETWEEN)
    for index, case in enumerate(cases):
        inputs = tuple(tensor.to(device) for tensor in case.inputs)
        with torch.no_grad():
            package, eager = (
                library(clone_inputs(inputs)),
                flatten_tensors(module(*clone_inputs(inputs))),
            )
        apart = max([apart, *map(_distance, package, eager)])
        is_between = 0 < index < len(cases) - 1 and not case.name.endswith(EXAMPLE)
        time_it = partial(time_in_turns, case.name, inputs, lambda given: module(*given), library)
        timings.append(
            time_it(budget_s=_BUDGET_BETWEEN_S) if is_between else retry_if_blurred(time_it)
        )
    return BenchmarkResult(tuple(timings), apart)


def _distance(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).abs().max()) if got.numel() else 0.0


def timed_cases(reference: Path, *, between: int = 0) -> list[ReferenceCase]:
    """Return the smallest and the largest ordinary case; one where they are as large.

    With `between`, up to so many others, too, as evenly apart as the plan's sizes let them be in
    the logarithm of their number of elements. Small ones come first.
    """
    return sized_cases(load_cases(reference), between=between)


def sized_cases(cases: Sequence[ReferenceCase], *, between: int = 0) -> list[ReferenceCase]:
    """Return what `timed_cases` does, of cases that were read."""
    drawn = [case for case in cases if case.values == "drawn"]
    # Of cases of one size the plan's first stands for all.
    by_size = {count_elements(case): case for case in reversed(drawn)}
    sizes = sorted(by_size)
    low, high = (math.log(max(size, 1)) for size in (sizes[0], sizes[-1]))
    steps = (low + (high - low) * step / (between + 1) for step in range(1, between + 1))
    inner = {min(sizes, key=lambda size: abs(math.log(max(size, 1)) - step)) for step in steps}
    return [by_size[size] for size in sorted({sizes[0], sizes[-1], *inner})]


def cases_with_example(cases: Sequence[ReferenceCase], *, between: int = 0) -> list[ReferenceCase]:
    """Return what `sized_cases` does and the delivery's first example, in its place by its size.

    It stands for a drawn case of as many elements, and for those between the ends that have nearly
    as many. Where it was left out, because it would have taken too much memory, there is none.
    """
    sized = sized_cases(cases, between=between)
    example = next((case for case in cases if case.name.endswith(EXAMPLE)), None)
    if example is None:
        return sized
    size = count_elements(example)
    ends = (count_elements(sized[0]), count_elements(sized[-1]))
    others = [
        case for case in sized
        if (count := count_elements(case)) != size
        and (count in ends or not size / _SIMILAR <= count <= size * _SIMILAR)
    ]  # fmt: skip
    return sorted((*others, example), key=count_elements)


def count_elements(case: ReferenceCase) -> int:
    """Return how many elements a case's inputs have, together."""
    return sum(tensor.numel() for tensor in case.inputs)


def retry_if_blurred(time_it: Callable[[], Timing], pause_s: float = _PAUSE_S) -> Timing:
    """Return what is timed, once more after a pause where other work blurred it.

    The narrower interval counts, and not the better figure.
    """
    first = time_it()
    is_narrow = replace(first.over_eager, is_blurred=False).is_known
    if is_narrow or first.others is None or first.others < BUSY:
        return first
    time.sleep(pause_s)
    return min(
        first, time_it(), key=lambda timing: timing.speedup_high / max(timing.speedup_low, 1e-9)
    )


def time_in_turns(
    name: str,
    inputs: Tensors,
    eager: Callable[[Tensors], object],
    package: Callable[[Tensors], object],
    *,
    budget_s: float = _BUDGET_S,
) -> Timing:
    """Return how long both take on the case `name`, called one after the other in many rounds.

    Times are in seconds; inputs may be of any shapes and dtypes that both take. There are at least
    six, and more while these neither take long nor show enough.
    """
    inputs = tuple(tensor.clone() for tensor in inputs)
    with torch.no_grad():
        # Whoever calls this has called both before, to compare their outputs.
        eager(inputs)
        package(inputs)
        rounds: list[tuple[float, float]] = []
        began, others = time.perf_counter(), BackgroundLoad()
        while not is_enough(
            rounds, time.perf_counter() - began, others.processors, budget_s=budget_s
        ):
            rounds.append((time_call(eager, inputs), time_call(package, inputs)))
        busy = others.processors()
    ratios = sorted(slow / fast for slow, fast in rounds)
    low, high = median_interval(len(ratios))
    eager_s, package_s = (sorted(seconds) for seconds in zip(*rounds, strict=True))
    return Timing(
        case=name,
        eager_s=statistics.median(eager_s),
        package_s=statistics.median(package_s),
        speedup=statistics.median(ratios),
        speedup_low=ratios[low],
        speedup_high=ratios[high],
        rounds=len(rounds),
        threads=torch.get_num_threads(),
        eager_low_s=eager_s[low],
        eager_high_s=eager_s[high],
        package_low_s=package_s[low],
        package_high_s=package_s[high],
        others=busy,
    )


def is_enough(
    rounds: Sequence[tuple[float, float]],
    passed_s: float,
    others: Callable[[], float | None],
    *,
    budget_s: float = _BUDGET_S,
) -> bool:
    """Return whether the rounds, in seconds of eager and of the package, show enough or took long.

    `others` returns how many processors other work takes: where that may have moved every round
    alike, a narrow interval says little.
    """
    count = len(rounds)
    if count >= _MAX_ROUNDS or (count >= LEAST_ROUNDS and passed_s >= budget_s):
        return True
    if count not in _CHECKPOINTS or passed_s < _LEAST_S:
        return False
    ratios = sorted(slow / fast for slow, fast in rounds)
    low, high = median_interval(count)
    return ratios[high] <= _NARROW * ratios[low] and (others() or 0.0) < BUSY


def time_call(call: Callable[[Tensors], object], inputs: Tensors) -> float:
    """Return how long one call takes; on a GPU by CUDA's events, its last kernel included.

    That is in seconds, for inputs of any shapes and dtypes.
    """
    if any(tensor.is_cuda for tensor in inputs):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call(inputs)
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3
    began = time.perf_counter()
    call(inputs)
    return time.perf_counter() - began


def median_interval(count: int) -> tuple[int, int]:
    """Return the ranks (from 0) of the order statistics that hold the median with 95 %.

    The number of values below the median is binomial with one half, which needs no assumption
    about how the values are distributed (Conover, Practical Nonparametric Statistics, 3.2).
    """
    tail = 0.0
    weight = 0.5**count
    rank = 0
    while tail + weight <= 0.025 and rank < count // 2:
        tail += weight
        weight = weight * (count - rank) / (rank + 1)
        rank += 1
    # `rank` values may lie below the interval's lower end, so the one before it is the bound.
    low = max(rank - 1, 0)
    return low, count - 1 - low
