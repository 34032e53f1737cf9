"""One model's race, in a process of its own: what could be made of it, how exact, how fast.

python -m tests.benchmarks.served.race resnet18 FOLDER
"""

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

from artifacts.evidence import Candidate, choose
from artifacts.steps import RaceJob
from tasks import race as choosing
from tasks.compare import root_mean_square
from tasks.delivering.calls import describe_call
from tasks.float64 import flat_tensors
from tasks.loading import SHARED_LIBRARY, open_shared_library
from tasks.target_record import with_lap
from tests.benchmarks.served.competitors import MAKERS, Axes, Call, Flat, Tensors
from tests.benchmarks.served.turns import Race, run_in_turns
from tests.corpus.models import MODELS, CorpusModel

HANDOFF = "Handoff"


@dataclass
class Row:
    """What came of a model's race.

    `chosen` is the variant that the release's own race picked among `accepted`, `made_s` the
    seconds to make a competitor and call it once, `error` its largest difference to eager over the
    RMS of eager's output, `failed` why one is missing. `load` is the machine's before.
    """

    name: str
    kind: str
    batch: int
    threads: int
    chosen: str = ""
    accepted: list[str] = field(default_factory=list)
    made_s: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    race: Race | None = None
    load: float = 0.0


def main() -> None:
    """Race one model; print its row as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("folder", type=Path, help="what tests.benchmarks.served.build has written")
    parser.add_argument("--competitors", default=",".join(MAKERS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--budget-s", type=float, default=10.0)
    given = parser.parse_args()
    (model,) = [model for model in MODELS if model.name == given.name]
    makers = [name for name in given.competitors.split(",") if name]
    row = race(model, given.folder, makers, rounds=given.rounds, budget_s=given.budget_s)
    print("\n" + json.dumps(asdict(row)))


def race(
    model: CorpusModel, folder: Path, makers: list[str], *, rounds: int, budget_s: float
) -> Row:
    """Make every competitor, compare it with eager, and time those that could be made."""
    module, (args, kwargs) = model.make()
    call, inputs = describe_call(module, args, kwargs)
    flat, axes = Flat(module, call).eval(), _batch_axes(inputs, model.batch)
    row = Row(model.name, model.kind, model.batch, torch.get_num_threads())
    row.load = psutil.getloadavg()[0]
    field_of = _Field(row, inputs)
    with torch.no_grad():
        for name in makers:
            field_of.enter(name, lambda name=name: MAKERS[name](flat, inputs, axes))  # type: ignore[misc]
        field_of.enter(HANDOFF, lambda: _released(row, folder))
        row.race = run_in_turns(
            {name: lambda call=call: call(inputs) for name, call in field_of.calls.items()},  # type: ignore[misc]
            rounds=rounds, budget_s=budget_s,
        )  # fmt: skip
    return row


class _Field:
    """Who races: those that could be made, and give what the first one gives."""

    def __init__(self, row: Row, inputs: Tensors) -> None:
        self._row, self._inputs = row, inputs
        self._want: Tensors = ()
        self.calls: dict[str, Call] = {}

    def enter(self, name: str, make: Callable[[], Call]) -> None:
        """Make a competitor and compare it, or say why there is none."""
        began = time.monotonic()
        try:
            call = make()
            got = call(self._inputs)
        except Exception as error:  # noqa: BLE001 - what can't be made is a result
            first = (str(error).strip().splitlines() or [""])[0]
            self._row.failed[name] = f"{type(error).__name__}: {first}"[:300]
            print(f"{self._row.name}: no {name}: {self._row.failed[name]}", file=sys.stderr)
            return
        self._row.made_s[name] = time.monotonic() - began
        got = tuple(flat_tensors(got))
        self._want = self._want or tuple(tensor.clone() for tensor in got)
        self._row.error[name] = max(map(_relative_error, got, self._want))
        self.calls[name] = call


def _released(row: Row, folder: Path) -> Call:
    """Return the package that a release would register: its race between the variants decides."""
    variants = json.loads((folder / "variants.json").read_text(encoding="utf-8"))
    accepted = [variant for variant in variants if variant["accepted"]]
    if not accepted or accepted[0]["name"] != "plain":
        raise RuntimeError(f"the release is refused: {variants[0]['reasons']}")
    folders = tuple(Path(variant["folder"]) for variant in accepted)
    laps = choosing.run(RaceJob(folders, Path(accepted[0]["reference"]))).laps
    told = tuple(
        with_lap(Candidate(variant["name"], accepted=True, reasons=()), lap)
        for variant, lap in zip(accepted, laps, strict=True)
    )
    row.accepted, row.chosen = [one.name for one in told], choose(told).name
    return open_shared_library(folders[row.accepted.index(row.chosen)] / SHARED_LIBRARY)


def _relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    if not want.numel():
        return 0.0
    scale = root_mean_square(want.double()) or 1.0
    return float((got.double() - want.double()).abs().max()) / scale


def _batch_axes(inputs: Tensors, batch: int) -> Axes:
    size = torch.export.Dim("batch", min=1, max=1024)
    return tuple({0: size} if tensor.shape[0] == batch else {} for tensor in inputs)


if __name__ == "__main__":
    main()
