"""What a loaded package costs beside torch's own loader: for each call, and to open it.

python -m tests.studies.benchmarks.loaded

A small recommender (ids with a range, features) is built as a release does it, and called with one
row, `artifacts.serve.loader` and torch's `AOTIModelContainerRunnerCpu` in turns. The difference of
a round's two is what the checks of the inputs cost. To open, `artifacts.serve.loader` verifies the
signature, hashes the file and copies it into sealed memory; torch opens a fresh copy of the file.
In C++ the runner tells both itself: a call's checks alone, and the check of the file beside torch's
own opening, in a new process each time.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from safetensors.torch import save_file
from torch._C import _aoti

from handoff.artifacts.serve.loader import load
from handoff.infra.terminal.console import print_table
from handoff.tasks.probe.build import build_runner
from handoff.tasks.timing.benchmark import median_interval
from handoff.tasks.verify.loading import SHARED_LIBRARY
from tests.studies.benchmarks.served.turns import Ratio, TimedCall, run_in_turns
from tests.tasks.built_release import ITEMS, BuiltRelease, build_release

_ROUNDS = 300
_OPENINGS = 41
_PROCESSES = 15


def main() -> None:
    """Measure both and print them."""
    load_before = psutil.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="handoff-loaded-") as scratch:
        built = build_release(Path(scratch))
        added = _added_by_a_call(built)
        opened = _openings(built, Path(scratch))
        cpp = _in_cpp(built, Path(scratch))
    low, high = median_interval(len(added))
    microseconds = [one * 1e6 for one in sorted(added)]
    rows = [
        *cpp,
        ("a call, added", f"{statistics.median(microseconds):.1f} us",
         f"{microseconds[low]:.1f} to {microseconds[high]:.1f}", "10 us"),
        ("open, times torch's", f"{opened.value:.2f}",
         f"{opened.low:.2f} to {opened.high:.2f}", "1.1"),
    ]  # fmt: skip
    print_table(f"torch {torch.__version__}, load before: {load_before:.1f}",
                ("what", "median", "95 %", "goal"), rows)  # fmt: skip


def _added_by_a_call(built: BuiltRelease) -> list[float]:
    """Return the seconds that each round's call takes longer with the checks."""
    checked = load(built.folder, keys=built.key)
    plain = _aoti.AOTIModelContainerRunnerCpu(str(built.package / SHARED_LIBRARY), 1)
    ids, features = torch.randint(ITEMS, (1, 20)), torch.randn(1, 64)
    with torch.no_grad():
        turns = {
            "checked": TimedCall(lambda: checked(ids, features)).turn,
            "plain": TimedCall(lambda: plain.run([ids, features])).turn,
        }
        race = run_in_turns(turns, rounds=_ROUNDS, budget_s=60.0)
    pairs = zip(race.seconds["checked"], race.seconds["plain"], strict=True)
    return [checked_s - plain_s for checked_s, plain_s in pairs]


def _openings(built: BuiltRelease, scratch: Path) -> Ratio:
    """Return how many times as long as torch's own opening a checked one takes, in turns."""
    checked_s, plain_s = [], []
    for turn in range(_OPENINGS):
        copy = scratch / f"copy-{turn}.so"
        shutil.copyfile(built.package / SHARED_LIBRARY, copy)

        def plainly(path: Path = copy) -> object:
            return _aoti.AOTIModelContainerRunnerCpu(str(path), 1)

        plain_s.append(_seconds(plainly))
        checked_s.append(_seconds(lambda: load(built.folder, keys=built.key)))
        copy.unlink()
    return Ratio.of(checked_s, plain_s)


def _in_cpp(built: BuiltRelease, scratch: Path) -> list[tuple[str, ...]]:
    """Return the rows of what the runner measures itself."""
    program, _ = build_runner(Path("infra/runner"), scratch / "programs")
    cases = scratch / "cases.safetensors"
    inputs = {"ids": torch.randint(ITEMS, (1, 20)), "features": torch.randn(1, 64)}
    outputs = load(built.folder, keys=built.key)(*inputs.values())
    save_file(
        {f"0/inputs/{name}": tensor for name, tensor in inputs.items()}
        | {f"0/outputs/{place}": tensor for place, tensor in enumerate(outputs)}, cases,
    )  # fmt: skip
    command = [
        str(program), "bench", str(built.folder), str(cases), "--key", str(built.key),
        "--threads", "1", "--calls", "2", "--seconds", "0",
    ]  # fmt: skip
    guards, ratios = [], []
    for _ in range(_PROCESSES):
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        opened = json.loads(output.splitlines()[0])
        guards.append(opened["guard_s"] * 1e6)
        ratios.append((opened["check_s"] + opened["open_s"]) / opened["open_s"])
    low, high = median_interval(_PROCESSES)
    guards.sort()
    ratios.sort()
    return [
        ("a call in C++, added", f"{statistics.median(guards):.2f} us",
         f"{guards[low]:.2f} to {guards[high]:.2f}", "2 us"),
        ("open in C++, times torch's", f"{statistics.median(ratios):.2f}",
         f"{ratios[low]:.2f} to {ratios[high]:.2f}", "1.1"),
    ]  # fmt: skip


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    held = call()
    took = time.perf_counter() - began
    del held
    return took


if __name__ == "__main__":
    main()
