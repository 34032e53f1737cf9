"""Race: packages against each other, call by call in turns: variants, or one and its successor.

A version and its successor are loaded as a server loads them, with their signatures verified.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from handoff.artifacts.delivery.contract import EXAMPLES_FILE
from handoff.artifacts.release.comparison import SideBySide
from handoff.artifacts.release.evidence import EXAMPLE
from handoff.artifacts.serve.loader import LoadedModel, load
from handoff.tasks.timing.benchmark import (
    LEAST_ROUNDS,
    count_elements,
    median_interval,
    sized_cases,
    time_call,
)
from handoff.tasks.timing.messages import RaceJob, RaceLap, RaceResult, SideBySideJob
from handoff.tasks.verify.loading import SHARED_LIBRARY, Tensors, open_shared_library
from handoff.tasks.verify.reference import ReferenceCase, load_cases

_MIN_ROUNDS = 15
_MAX_ROUNDS = 200
_BUDGET_S = 4.0
_PATIENCE_S = 60.0
_WARM_UP_CALLS = 3
# A longer call warms itself up.
_SHORT_S = 0.1


def run(job: RaceJob) -> RaceResult:
    """Time every package on the plan's smallest inputs, the example, and the largest inputs."""
    libraries = [open_shared_library(folder / SHARED_LIBRARY) for folder in job.folders]
    by_size: dict[int, list[list[float]]] = {}
    cases = []
    for case in raced_cases(job.reference):
        size = count_elements(case)
        if size not in by_size:
            by_size[size] = race_in_turns(libraries, case.inputs)
        cases.append(by_size[size])
    return RaceResult(
        tuple(summarize([rounds[index] for rounds in cases], [rounds[0] for rounds in cases])
              for index in range(len(libraries)))
    )  # fmt: skip


def raced_cases(reference: Path) -> tuple[ReferenceCase, ReferenceCase, ReferenceCase]:
    """Return the smallest case, the delivery's first example, and the largest case.

    Where the example was left out, because it would have taken too much memory, the largest.
    """
    cases = load_cases(reference)
    ordinary = sized_cases(cases)
    examples = (one for one in cases if one.name.endswith(EXAMPLE))
    return ordinary[0], next(examples, ordinary[-1]), ordinary[-1]


def race_in_turns(
    libraries: Sequence[Callable[[Tensors], object]], inputs: Tensors
) -> list[list[float]]:
    """Return for each library its seconds in each round.

    Inputs may be of any shapes and dtypes that all of them take. In its turn a library of short
    calls is called once untimed, so that its weights are where they are in a series of calls: right
    after another's calls, a package of wav2vec 2.0 seemed to be as fast as one that takes three
    quarters of its time when it is called again and again. Who begins a round changes. There are at
    least 15 rounds, or six where these would take long.
    """
    inputs = tuple(tensor.clone() for tensor in inputs)
    seconds: list[list[float]] = [[] for _ in libraries]
    order = list(range(len(libraries)))
    with torch.no_grad():
        for library in libraries:
            for _ in range(_WARM_UP_CALLS):
                library(inputs)
        is_short = max(time_call(library, inputs) for library in libraries) < _SHORT_S
        began = time.perf_counter()
        while not _is_enough(len(seconds[0]), time.perf_counter() - began):
            for index in order:
                if is_short:
                    libraries[index](inputs)
                seconds[index].append(time_call(libraries[index], inputs))
            order.append(order.pop(0))
    return seconds


def _is_enough(rounds: int, passed_s: float) -> bool:
    least = _MIN_ROUNDS if passed_s < _PATIENCE_S else LEAST_ROUNDS
    return rounds >= _MAX_ROUNDS or (rounds >= least and passed_s >= _BUDGET_S)


def summarize(seconds: list[list[float]], baseline_seconds: list[list[float]]) -> RaceLap:
    """Return one library's lap, by its seconds on each input and those of the plain one."""
    times, ratios, lows, highs = [], [], [], []
    for own, baseline in zip(seconds, baseline_seconds, strict=True):
        quotients = sorted(a / b for a, b in zip(baseline, own, strict=True))
        low, high = median_interval(len(quotients))
        times.append(statistics.median(own))
        ratios.append(statistics.median(quotients))
        lows.append(quotients[low])
        highs.append(quotients[high])
    return RaceLap(tuple(times), tuple(ratios), tuple(lows), tuple(highs))


def side_by_side(job: SideBySideJob) -> SideBySide:
    """Return how many times as fast the second release is as the first.

    Raises `PackageRefused` where one can't be opened.
    """
    models = [load(folder, keys=job.keys, target=job.target) for folder in job.folders]
    examples = load_file(job.folders[-1] / EXAMPLES_FILE)
    inputs = tuple(examples[f"0/inputs/{spec.name}"] for spec in models[-1].signature.inputs)
    before, after = race_in_turns([_tensor_call(model) for model in models], inputs)
    lap = summarize([after], [before])
    return SideBySide(
        target=job.target,
        sizes=", ".join("x".join(map(str, tensor.shape)) for tensor in inputs),
        ratio=lap.ratios[0],
        low=lap.ratios_low[0],
        high=lap.ratios_high[0],
        threads=torch.get_num_threads(),
    )


def _tensor_call(model: LoadedModel) -> Callable[[Tensors], object]:
    return lambda inputs: model.tensors(*inputs)
