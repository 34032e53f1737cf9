"""The road's own cost: `handoff release` of ResNet-18 against a bare script, in turns.

    make bench-road
    python -m tests.benchmarks.release --pairs 5

Prints wall seconds and peak memory of both (medians over the pairs, smallest and largest), and the
median of the pairs' own ratios with a 95 % interval. Memory is the proportional set size (shared
pages are counted once), sampled twice a second: of the largest process, and of the whole tree.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from infra.console import print_table
from tasks.benchmark import median_interval


@dataclass(frozen=True)
class Run:
    """One run: wall seconds, and the peak bytes of its largest process and of the whole tree."""

    wall_s: float
    largest_bytes: int
    tree_bytes: int


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    load = psutil.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="handoff-bench-") as scratch:
        folder = Path(scratch)
        delivery = folder / "delivery"
        _handoff(folder, "deliver", "examples.resnet18:build", "--to", str(delivery))
        # One run of each that isn't counted: databases, precompiled headers and page caches.
        measure(_release(folder, delivery), folder)
        measure(_bare(folder), folder)
        runs = [
            (measure(_release(folder, delivery), folder), measure(_bare(folder), folder))
            for _ in range(pairs)
        ]
    _print(runs, load)


def _handoff(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "infra.cli", *arguments]
    subprocess.run(command, env=_environment(folder), check=True, stdout=subprocess.DEVNULL)


def _release(folder: Path, delivery: Path) -> list[str]:
    return [sys.executable, "-m", "infra.cli", "release", str(delivery), "--rebuild"]


def _bare(folder: Path) -> list[str]:
    return [sys.executable, "-m", "tests.benchmarks.bare_release"]


def _environment(folder: Path) -> dict[str, str]:
    from artifacts.target import native_cpu_target

    # The bare script's cache is fresh for each run, as a release's is; both keep their
    # precompiled headers, which go by TMPDIR.
    cache = tempfile.mkdtemp(prefix="cache-", dir=folder)
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    return {
        **os.environ,
        "HANDOFF_HOME": str(folder / "home"),
        "TORCHINDUCTOR_CACHE_DIR": cache,
        "TMPDIR": str(scratch),
        "ATEN_CPU_CAPABILITY": native_cpu_target().capability,
    }


def measure(command: list[str], folder: Path) -> Run:
    """Run `command` and return what it took; raise when it fails."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, env=_environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    peaks = [0, 0]
    sampler = threading.Thread(target=_sample, args=(process.pid, peaks), daemon=True)
    sampler.start()
    _, errors = process.communicate()
    wall = time.monotonic() - began
    sampler.join()
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}: {errors.decode()[-2000:]}")
    return Run(wall, *peaks)


def _sample(pid: int, peaks: list[int]) -> None:
    """Keep the largest process's and the tree's largest sizes until the process ends."""
    while True:
        try:
            root = psutil.Process(pid)
            if root.status() == psutil.STATUS_ZOMBIE:
                return
            sizes = [_size(process.pid) for process in [root, *root.children(recursive=True)]]
        except psutil.NoSuchProcess:
            return
        peaks[:] = max(peaks[0], *sizes), max(peaks[1], sum(sizes))
        time.sleep(0.5)


def _size(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    (line,) = [line for line in text.splitlines() if line.startswith("Pss:")] or ["Pss: 0 kB"]
    return int(line.split()[1]) * 1024


def _print(runs: list[tuple[Run, Run]], load: float) -> None:
    rows = []
    for name, chosen in (("handoff release", 0), ("bare script", 1)):
        walls = [pair[chosen].wall_s for pair in runs]
        largest = [pair[chosen].largest_bytes / 2**30 for pair in runs]
        trees = [pair[chosen].tree_bytes / 2**30 for pair in runs]
        rows.append(
            (
                name,
                f"{statistics.median(walls):.1f}",
                f"{min(walls):.1f} to {max(walls):.1f}",
                f"{statistics.median(largest):.2f}",
                f"{statistics.median(trees):.2f}",
            )
        )
    print_table("ResNet-18", ("what", "seconds", "range", "largest GiB", "tree GiB"), rows)
    ratios = sorted(a.wall_s / b.wall_s for a, b in runs)
    low, high = median_interval(len(ratios))
    middle = statistics.median(ratios)
    print(
        f"release / bare: {middle:.2f} (from {ratios[low]:.2f} to {ratios[high]:.2f}, "
        f"{len(runs)} pairs; load before the first: {load:.1f}; torch threads as torch chooses)"
    )


if __name__ == "__main__":
    main()
