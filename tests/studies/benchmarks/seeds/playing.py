"""The seeds' protocol, in one process: everybody is called in turns, the last half is timed.

    python -m tests.studies.benchmarks.seeds.playing JOB.json

Seed 000 called each 200 times, one after the other, and summed the last hundred. Here they take
turns, so that what else the machine does is everybody's. On a GPU a call ends when its last kernel
has.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import torch

from handoff.tasks.verify.float64 import flatten_tensors
from tests.studies.benchmarks.failures import describe_failure
from tests.studies.benchmarks.seeds.asked import (
    PlayJob,
    PlayResult,
    precision_of,
    read_record,
    write_record,
)
from tests.studies.benchmarks.seeds.contestants import EAGER, makers, open_eager
from tests.studies.benchmarks.seeds.subjects import prepare
from tests.studies.benchmarks.served.competitors import Call, Tensors

# Threads that wait for more work spin for a while (OpenMP's, ONNX Runtime's) and would take the
# cores from whoever comes next (as in `served.turns`).
_PAUSE_S = 0.005


def main() -> None:
    """Do the job; end with one line where it can't be done."""
    job = read_record(PlayJob, Path(sys.argv[1]))
    try:
        with torch.no_grad(), precision_of(job.precision):
            write_record(job.to, play(job))
    except Exception as failure:  # noqa: BLE001 - what can't be played is a result
        sys.exit(describe_failure(failure))


def play(job: PlayJob) -> PlayResult:
    """Open everybody, and call them in turns."""
    model, inputs = prepare(job)
    calls: dict[str, Call] = {EAGER: open_eager(model, inputs)}
    want = flatten_tensors(calls[EAGER](inputs))
    apart, missing = {EAGER: 0.0}, {}
    for name, make in makers(job, model, inputs, want).items():
        job.opening.write_text(name, encoding="utf-8")
        try:
            call = make()
            apart[name] = largest_difference(flatten_tensors(call(inputs)), want)
        except Exception as failure:  # noqa: BLE001 - what can't be made is a result
            missing[name] = describe_failure(failure)
        else:
            calls[name] = call
    job.opening.unlink(missing_ok=True)
    load = psutil.getloadavg()[0]
    seconds = take_turns(calls, inputs, job.runs)
    return PlayResult(_machine(job.device), load, seconds, apart, missing)


def take_turns(
    calls: Mapping[str, Call], inputs: Tensors, runs: int
) -> dict[str, tuple[float, ...]]:
    """Call each in turns, `runs` times; return the seconds of the last half.

    Who begins a round changes.
    """
    on_gpu = any(tensor.is_cuda for tensor in inputs)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    if on_gpu:
        torch.cuda.synchronize()
    for _ in range(runs):
        for name in order:
            if not on_gpu:
                time.sleep(_PAUSE_S)
            began = time.perf_counter()
            calls[name](inputs)
            if on_gpu:
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - began)
        order.append(order.pop(0))
    return {name: tuple(own[runs // 2 :]) for name, own in seconds.items()}


def largest_difference(got: Tensors, want: Tensors) -> float:
    """Return the largest difference of an element: NaN for one that is NaN on one side alone.

    Raises `ValueError` where there is another number of outputs, or one has another shape.
    """
    largest = 0.0
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape:
            raise ValueError(f"expected an output {list(b.shape)}, got {list(a.shape)}")
        apart = (a.double() - b.double()).abs()
        apart[(a.isnan() & b.isnan()) | (a == b)] = 0.0
        if apart.isnan().any():
            return math.nan
        if apart.numel():
            largest = max(largest, float(apart.max()))
    return largest


def _machine(device: str) -> str:
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"the CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"


if __name__ == "__main__":
    main()
