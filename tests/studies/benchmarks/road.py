"""A release's own cost: releases of the demo's models against each other and a bare script.

    make bench-road
    python -m tests.studies.benchmarks.road --rounds 3 --model resnet18

Each round makes, in turns: a bare script with the same torch calls (`bare_release`; ResNet-18
alone), a full release, one of the same graph with other weights, and one of what has not changed.
Tells the median of each kind's seconds, the medians of the rounds' own ratios, each with the
interval that holds its median with 95 % (from the smallest to the largest with fewer than nine
rounds; of three these hold it with 75 %), and where a release's seconds go, step by step; some
steps run beside each other. After that, what a person waits for at the start: `handoff --help`,
`handoff list`, the first step's end.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from handoff.infra.terminal.console import print_table
from tests.studies.benchmarks.processes import Run, bare_script, handoff, handoff_command, measure
from tests.studies.benchmarks.served.turns import Ratio
from tests.studies.benchmarks.step_lines import step_seconds

BARE, FULL, WEIGHTS, UNCHANGED = "bare script", "full", "other weights", "unchanged"
_GOALS = {(FULL, BARE): "1.5", (WEIGHTS, FULL): "0.35"}
_STARTS = 9
_FACTORY = """import torch
from examples.{model} import build as make


def build():
    module, example, options = make()
    with torch.no_grad():
        for weights in module.parameters():
            weights.mul_({factor})
    return module, example, options
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", action="append", choices=("resnet18", "user_model"))
    args = parser.parse_args()
    for model in args.model or ("resnet18", "user_model"):
        load = psutil.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="handoff-bench-") as scratch:
            rounds = _rounds(Path(scratch), model, args.rounds)
            starts = _starts(Path(scratch))
        _print(model, rounds, load)
        first = statistics.median(one[FULL].first_s for one in rounds)
        rows = [*starts, ("a release's first step is done", f"{first:.2f}", "5")]
        print_table("seconds after Enter, medians", ("what", "seconds", "goal"), rows)


def _rounds(folder: Path, model: str, count: int) -> list[dict[str, Run]]:
    _deliver(folder, model, "first", 1.0)
    # A run of each that isn't counted: databases, precompiled headers and page caches.
    measure(_release(folder, "first"), folder)
    bare: dict[str, Callable[[], Run]] = {}
    if model == "resnet18":
        bare[BARE] = lambda: measure(bare_script(), folder)
        bare[BARE]()
    found = []
    for number in range(count):
        other = f"other-{number}"
        _deliver(folder, model, other, 1.0 + 0.01 * (number + 1))
        kinds: dict[str, Callable[[], Run]] = {
            **bare,
            FULL: lambda: measure(_release(folder, "first", "--rebuild"), folder),
            WEIGHTS: lambda other=other: measure(_release(folder, other), folder),  # type: ignore[misc]
            UNCHANGED: lambda other=other: measure(_release(folder, other), folder),  # type: ignore[misc]
        }
        found.append({kind: run() for kind, run in kinds.items()})
    return found


def _starts(folder: Path) -> list[tuple[str, str, str]]:
    """Return what short commands take on the home that releases were made in."""
    rows = []
    for argument, goal in (("--help", "0.3"), ("list", "1")):
        seconds = [measure(handoff_command(argument), folder).wall_s for _ in range(_STARTS)]
        rows.append((f"handoff {argument}", f"{statistics.median(seconds):.2f}", goal))
    return rows


def _deliver(folder: Path, model: str, name: str, factor: float) -> None:
    module = f"delivering_{name.replace('-', '_')}"
    source = _FACTORY.format(model=model, factor=factor)
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    handoff(folder, "deliver", f"{module}:build", "--to", str(folder / name))


def _release(folder: Path, delivery: str, *options: str) -> list[str]:
    return handoff_command("release", str(folder / delivery), *options)


def _print(model: str, rounds: list[dict[str, Run]], load: float) -> None:
    kinds = list(rounds[0])
    seconds = {kind: [one[kind].wall_s for one in rounds] for kind in kinds}
    steps = {
        kind: [step_seconds(one[kind].stderr) for one in rounds] for kind in kinds if kind != BARE
    }
    rows = [
        (kind, f"{statistics.median(seconds[kind]):.1f}", f"{_median_cpu(rounds, kind):.1f}",
         f"{max(one[kind].tree_bytes for one in rounds) / 2**30:.2f}")
        for kind in kinds
    ]  # fmt: skip
    title = f"{model}: medians of {len(rounds)} rounds, load before: {load:.1f}"
    print_table(title, ("what", "seconds", "CPU seconds", "GiB"), rows)
    names = dict.fromkeys(name for each in steps.values() for one in each for name in one)
    print_table(
        "steps, seconds", ("step", *steps),
        [(name, *(_median(one.get(name) for one in each) for each in steps.values()))
         for name in names],
    )  # fmt: skip
    for (slow, fast), goal in _GOALS.items():
        if slow in seconds and fast in seconds:
            print(f"{slow} / {fast}: {Ratio.of(seconds[slow], seconds[fast])}, goal {goal}")
    shares = [one["verify"] / one["compile"] for one in steps[FULL]]
    print(f"verify / compile of a full one: {statistics.median(shares):.2f}, goal 0.30")


def _median_cpu(rounds: list[dict[str, Run]], kind: str) -> float:
    return statistics.median(one[kind].cpu_s for one in rounds)


def _median(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f}" if known else "-"


if __name__ == "__main__":
    main()
