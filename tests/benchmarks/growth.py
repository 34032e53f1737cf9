"""How the registry's commands grow with a model's versions, and the release with its weights.

python -m tests.benchmarks.growth registry --versions 10,100,1000
python -m tests.benchmarks.growth weights --megabytes 10,100,1000

`registry`: the seconds of what `list`, `pull` and `promote` do (in this process, a store in a
folder, packages of a few bytes) when a model has so many versions. `weights`: seconds and peak
memory of a whole `handoff release` of linear layers with so many megabytes. Each curve is told with
its exponent: the slope of log(seconds) over log(size) by least squares; 0 is flat, 1 is linear.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from artifacts.errors import HandoffError
from infra.console import print_table
from tests.benchmarks.release import Run, measure
from tests.tasks.registering import SomeRegistry, some_registry

_REPEATS = 11
_LAYER_MB = 64  # 4096 x 4096 float32


def main() -> None:
    """Measure one curve and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    curves = parser.add_subparsers(dest="curve", required=True)
    usual = [10, 100, 1000]
    curves.add_parser("registry").add_argument("--versions", default=usual, type=_numbers)
    curves.add_parser("weights").add_argument("--megabytes", default=usual, type=_numbers)
    given = parser.parse_args()
    print(f"load before: {psutil.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="handoff-growth-") as scratch:
        if given.curve == "registry":
            _tell_registry(Path(scratch), given.versions)
        else:
            _tell_weights(Path(scratch), given.megabytes)


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def exponent(sizes: list[int], values: list[float]) -> float:
    """Return the slope of log(value) over log(size), by least squares."""
    xs, ys = [math.log(one) for one in sizes], [math.log(one) for one in values]
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread


def _tell_registry(root: Path, counts: list[int]) -> None:
    registry = some_registry(root)
    seconds: dict[str, list[float]] = {}
    for count in counts:
        while _newest(registry) < count:
            registry.release(created=f"2026-01-01T00:00:{_newest(registry)}Z")
        for name, timed in _commands(registry, count).items():
            seconds.setdefault(name, []).append(timed)
    rows = [
        (name, *(f"{one * 1e3:.1f}" for one in timed), f"{exponent(counts, timed):.2f}", "0")
        for name, timed in seconds.items()
    ]
    columns = ("ms", *(f"{count} versions" for count in counts), "exponent", "expected")
    print_table(f"median of {_REPEATS}", columns, rows)


def _newest(registry: SomeRegistry) -> int:
    try:
        return registry.releases.require_head("toy").entry.newest
    except HandoffError:
        return 0


def _commands(registry: SomeRegistry, count: int) -> dict[str, float]:
    """Return the median seconds of each command's work on the registry as it is."""

    def list_all() -> None:
        releases = registry.releases
        for model in releases.models():
            releases.read(model, releases.find(model, None))

    def pull() -> None:
        with tempfile.TemporaryDirectory() as folder:
            registry.pull(Path(folder) / "pulled")

    # A version that production doesn't stand for yet each time.
    turns = iter(range(count, 0, -1))

    def promote() -> None:
        registry.promote(1 + next(turns) % min(count, 5))

    return {"list": _median(list_all), "pull": _median(pull), "promote": _median(promote, 7)}


def _median(call: Callable[[], None], repeats: int = _REPEATS) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _tell_weights(root: Path, sizes: list[int]) -> None:
    runs: list[Run] = []
    for size in sizes:
        (root / "grown.py").write_text(_model(size), encoding="utf-8")
        delivery = root / f"delivery-{size}"
        command = [sys.executable, "-m", "infra.cli"]
        environment = {**os.environ, "PYTHONPATH": f"{root}:{Path.cwd()}"}
        subprocess.run([*command, "deliver", "grown:build", "--to", str(delivery)],
                       env=environment, check=True, stdout=subprocess.DEVNULL)  # fmt: skip
        runs.append(measure([*command, "release", str(delivery), "--rebuild"], root))
        (root / "grown.py").unlink()
    rows = [
        ("seconds", *(f"{run.wall_s:.0f}" for run in runs),
         f"{exponent(sizes, [run.wall_s for run in runs]):.2f}"),
        ("largest process, GiB", *(f"{run.largest_bytes / 2**30:.2f}" for run in runs),
         f"{exponent(sizes, [run.largest_bytes for run in runs]):.2f}"),
        ("whole tree, GiB", *(f"{run.tree_bytes / 2**30:.2f}" for run in runs),
         f"{exponent(sizes, [run.tree_bytes for run in runs]):.2f}"),
    ]  # fmt: skip
    print_table("a release", ("", *(f"{size} MB" for size in sizes), "exponent"), rows)


def _model(megabytes: int) -> str:
    layers = max(1, megabytes // _LAYER_MB)
    width = int(math.sqrt(megabytes * 1e6 / 4 / layers))
    return (
        "import torch\n\n\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        f"    layers = [torch.nn.Linear({width}, {width}) for _ in range({layers})]\n"
        f"    return torch.nn.Sequential(*layers).eval(), (torch.randn(2, {width}),)\n"
    )


if __name__ == "__main__":
    main()
