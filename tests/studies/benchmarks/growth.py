"""How the registry's commands grow with a model's versions, and the release with its weights.

python -m tests.studies.benchmarks.growth [registry weights nodes outputs targets]
python -m tests.studies.benchmarks.growth weights --sizes 10,100,1000

`registry`: the seconds of what `list`, `pull` and `promote` do (in this process, a store in a
folder, packages of a few bytes) when a model has so many versions. The others: seconds, peak memory
and what stays on disk of a whole `handoff release` of a model with so many megabytes of weights,
operators, outputs or targets (`growth_models`), in one home, after a first one that isn't counted:
it makes databases, the runner program and the precompiled headers of all targets that come after
it.

Each curve comes with its exponent at the end, the slope of log(value) over log(size) between the
last two sizes: 0 is flat, 1 linear. Over all sizes a constant hides what grows: 30 s and 9 us for
each square of a number between 100 and 5000 have a slope of 0.5 there, and 1.2 at the end. It rests
on two values alone: a tenth more seconds at one of them changes it by 0.04 to 0.14, as they lie ten
or two times apart.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from handoff.tasks.registry.changes import ReleaseRequest
from handoff.tasks.registry.messages import UploadJob
from tests.marked import require_marks, write_between_marks
from tests.studies.benchmarks.growth_models import CURVES, GrowthCurve
from tests.studies.benchmarks.processes import Run, handoff, handoff_command, measure
from tests.tasks.registry.registering import Here, SomeRegistry, some_registry

_REPEATS = 11
_STEP_LIMIT_S = 60.0


def main() -> None:
    """Measure the curves that are asked for and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("curves", nargs="*", default=["registry", *CURVES])
    parser.add_argument("--sizes", type=_numbers, help="of one curve")
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    for curve in args.curves:
        require_marks(args.write, f"growth of {curve}")
    for curve in args.curves:
        load = psutil.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="handoff-growth-") as scratch:
            if curve == "registry":
                table = _measure_registry(Path(scratch), args.sizes or [10, 100, 1000, 10_000])
            else:
                growing = CURVES[curve]
                sizes = args.sizes or list(growing.sizes)
                table = _measure_releases(Path(scratch), growing, sizes)
        text = "\n".join([*table, "", f"Load before: {load:.1f}."])
        print(text, flush=True)
        if args.write:
            write_between_marks(args.write, f"growth of {curve}", text)


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def exponent_at_the_end(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of log(value) over log(size) between the last two; NaN where one is 0."""
    if min(*values[-2:], *sizes[-2:]) <= 0.0:
        return math.nan
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])


def _measure_registry(root: Path, counts: list[int]) -> list[str]:
    registry = some_registry(root)
    manifest, folder = registry.write()
    # Every version is another entry of the same packages, as rebuilds are that come out the same:
    # drawing a report for each would take half an hour.
    uploaded = Here().run(UploadJob(manifest, folder, registry.stores))
    request = ReleaseRequest(
        manifest.model, manifest.digest, manifest.fingerprint, "candidate", rebuild=True
    )
    seconds: dict[str, list[float]] = {}
    newest = 0
    for count in counts:
        while newest < count:
            newest = registry.change(request, manifest=manifest, uploaded=uploaded).version
        for name, timed in _commands(registry, count).items():
            seconds.setdefault(name, []).append(timed)
    figures = {f"{name}, s": values for name, values in seconds.items()}
    return markdown("versions", counts, figures, dict.fromkeys(figures, "0"))


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


def _measure_releases(root: Path, growing: GrowthCurve, sizes: list[int]) -> list[str]:
    """Release a model of each size; return the table of seconds and memory."""
    found: list[tuple[int, Run, int]] = []
    _release(root, growing, sizes[growing.first_place])
    for size in sizes:
        before = _disk_bytes(root / "home")
        try:
            run = _release(root, growing, size)
        except RuntimeError as error:
            print(f"{size} {growing.what}: {error}", file=sys.stderr)
            break
        found.append((size, run, _disk_bytes(root / "home") - before))
    done = [size for size, _, _ in found]
    figures: dict[str, list[float]] = {
        "seconds": [run.wall_s for _, run, _ in found],
        "CPU seconds": [run.cpu_s for _, run, _ in found],
        "largest process, GiB": [run.largest_bytes / 2**30 for _, run, _ in found],
        "all processes, GiB": [run.tree_bytes / 2**30 for _, run, _ in found],
        "kept on disk, MB": [kept / 1e6 for _, _, kept in found],
    }
    return markdown(growing.what, done, figures, growing.expected)


def _release(root: Path, growing: GrowthCurve, size: int) -> Run:
    """Deliver and release a model of this size, by a recipe of its own."""
    (root / "grown.py").write_text(growing.source(size), encoding="utf-8")
    recipe, delivery = root / "recipe.toml", root / "delivery"
    recipe.write_text(growing.recipe(size), encoding="utf-8")
    handoff(root, "deliver", "grown:build", "--to", str(delivery))
    command = handoff_command("release", str(delivery), "--rebuild", "--recipe", str(recipe))
    try:
        return measure(command, root)
    finally:
        shutil.rmtree(delivery)


def _disk_bytes(folder: Path) -> int:
    """Return what the files below a folder take, each file of several names once."""
    files = [os.lstat(path) for path in folder.rglob("*") if path.is_file()]
    return sum({one.st_ino: one.st_blocks * 512 for one in files}.values())


def markdown(
    what: str, sizes: list[int], figures: Mapping[str, list[float]], expected: Mapping[str, str]
) -> list[str]:
    """Return the table of the figures at each size, with the exponents measured and expected."""
    head = [what, *map(str, sizes), "exponent at the end", "expected"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(sizes) + 1) + "---|"]
    for name, values in figures.items():
        slope = f"{exponent_at_the_end(sizes, values):.2f}" if len(sizes) > 1 else "-"
        cells = [name, *(f"{value:.3g}" for value in values), slope, expected[name]]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
