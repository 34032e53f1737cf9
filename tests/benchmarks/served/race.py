"""One model's race, in a process of its own: what could be made of it, how exact, how fast."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import torch

from tasks.delivering.calls import describe_call
from tasks.float64 import flat_tensors
from tasks.loading import open_shared_library
from tests.benchmarks.served.competitors import MAKERS, Axes, Call, Flat, Tensors
from tests.benchmarks.served.turns import Race, run_in_turns
from tests.corpus.models import MODELS, CorpusModel


@dataclass
class Row:
    """What came of a model's race.

    `error` is each competitor's largest difference to eager over the RMS of eager's output,
    `seconds` the medians of a call's, `against_eager` and `handoff_against` ratios with their
    intervals, `failed` why a competitor is missing. `load` is the machine's before, `others` the
    cores that other processes kept busy meanwhile.
    """

    name: str
    batch: int
    threads: int
    made_s: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    race: Race | None = None
    load: float = 0.0


def main() -> None:
    """Race one model; print its row as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--package", action="append", default=[], metavar="NAME=MODEL.SO")
    parser.add_argument("--competitors", default=",".join(MAKERS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--budget-s", type=float, default=30.0)
    given = parser.parse_args()
    (model,) = [model for model in MODELS if model.name == given.name]
    packages = dict(one.split("=", 1) for one in given.package)
    makers = [name for name in given.competitors.split(",") if name]
    row = race(model, makers, packages, rounds=given.rounds, budget_s=given.budget_s)
    print("\n" + json.dumps(asdict(row)))


def race(
    model: CorpusModel, makers: list[str], packages: dict[str, str], *, rounds: int, budget_s: float
) -> Row:
    """Make every competitor, compare it with eager, and time those that could be made."""
    torch.manual_seed(0)
    module = model.build().eval().requires_grad_(False)
    torch.manual_seed(model.batch)
    args, kwargs = model.inputs(model.batch)
    call, inputs = describe_call(module, args, kwargs)
    flat, axes = Flat(module, call).eval(), _batch_axes(inputs, model.batch)
    row = Row(model.name, model.batch, torch.get_num_threads(), load=psutil.getloadavg()[0])
    calls: dict[str, Call] = {}
    with torch.no_grad():
        want = flat_tensors(flat(*inputs))
        for name in makers:
            _try(row, calls, name, lambda name=name: MAKERS[name](flat, inputs, axes), inputs, want)  # type: ignore[misc]
        for name, path in packages.items():
            _try(row, calls, name, lambda path=path: open_shared_library(Path(path)), inputs, want)  # type: ignore[misc]
        row.race = run_in_turns(
            {name: lambda call=call: call(inputs) for name, call in calls.items()},  # type: ignore[misc]
            rounds=rounds, budget_s=budget_s,
        )  # fmt: skip
    return row


def _try(
    row: Row,
    calls: dict[str, Call],
    name: str,
    make: Callable[[], Call],
    inputs: Tensors,
    want: Tensors,
) -> None:
    began = time.monotonic()
    try:
        call = make()
        got = call(inputs)
    except Exception as error:  # noqa: BLE001 - a competitor that can't be made is a result
        row.failed[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"[:300]
        print(f"{row.name}: no {name}: {row.failed[name]}", file=sys.stderr)
        return
    row.made_s[name] = time.monotonic() - began
    row.error[name] = max(map(_relative_error, got, want))
    calls[name] = call


def _relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    if not want.numel():
        return 0.0
    scale = float(want.double().square().mean().sqrt()) or 1.0
    return float((got.double() - want.double()).abs().max()) / scale


def _batch_axes(inputs: Tensors, batch: int) -> Axes:
    size = torch.export.Dim("batch", min=1, max=1024)
    return tuple({0: size} if tensor.shape[0] == batch else {} for tensor in inputs)


if __name__ == "__main__":
    main()
