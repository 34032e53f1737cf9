"""Real parallel: two targets compiled at once, against each of them alone, in turns.

    make bench-targets
    python -m tests.studies.benchmarks.two_targets --rounds 3
    python -m tests.studies.benchmarks.two_targets --whole --factory examples.user_model:build

Each round compiles the program of a delivery for `cpu-avx512`, for both, and for `cpu-avx2`, in the
processes of a release, nothing cached; who begins changes. With `--whole` it runs the command
`handoff release` instead, and tells where its time goes. Both targets are made once before, which
isn't counted: it makes precompiled headers, and of a release the databases and the runner program.
Ratios are within a round, because the load of a shared machine changes from one to the next. CPU
seconds are the compilers' own and their children's: what two idle cores would need at least is the
larger of the slower target's and half of both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from handoff.artifacts.recipe.recipe import Recipe
from handoff.infra.terminal.console import print_table
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.optimize.messages import OptimizeResult
from handoff.tasks.release.processes import Processes
from tests.studies.benchmarks.processes import cpu_seconds, handoff, handoff_command, measure
from tests.studies.benchmarks.step_lines import step_seconds

T = TypeVar("T")

_SLUGS = ("cpu-avx512", "cpu-avx2")
_KINDS = (_SLUGS[:1], _SLUGS, _SLUGS[1:])
_VERBS = ("inspect", "optimize", "reference", "compile", "verify", "probe",
          "measure", "benchmark")  # fmt: skip


@dataclass(frozen=True)
class Build:
    """One measurement: its targets, wall seconds, those of its parts, and the load before it."""

    targets: tuple[str, ...]
    wall_s: float
    parts: dict[str, float]
    load: float


def main() -> None:
    """Measure and print; with `--json FILE`, keep what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--factory", default="examples.resnet18:build")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rounds: list[list[Build]] = []
    with tempfile.TemporaryDirectory(prefix="handoff-bench-", dir="/var/tmp") as scratch:
        folder = Path(scratch)
        handoff(folder, "deliver", args.factory, "--to", str(folder / "delivery"))
        program = None if args.whole else _optimize(folder)

        def build(targets: tuple[str, ...]) -> Build:
            return _compile(folder, program, targets) if program else _release(folder, targets)

        build(_SLUGS)
        for number in range(args.rounds):
            rounds.append([])
            for kind in in_turn(_KINDS, number):
                rounds[-1].append(build(kind))
                print(rounds[-1][-1], flush=True)
                if args.json:
                    args.json.write_text(json.dumps([[vars(r) for r in e] for e in rounds]))
    _print(rounds, _VERBS if args.whole else ("CPU cpu-avx512", "CPU cpu-avx2"))


def in_turn(kinds: Sequence[T], number: int) -> list[T]:
    """Return the kinds in the order of this round: another begins each time."""
    first = number % len(kinds)
    return [*kinds[first:], *kinds[:first]]


def ratio_of(builds: Sequence[Build]) -> float:
    """Return the seconds of a round's build for both targets over the slower one's alone."""
    (both,) = [build for build in builds if len(build.targets) > 1]
    return both.wall_s / max(build.wall_s for build in builds if len(build.targets) == 1)


def _optimize(folder: Path) -> OptimizeResult:
    with Processes(
        folder / "builds" / "program", Recipe(targets=_SLUGS[:1]), delivery=folder / "delivery"
    ) as processes:
        taking = IntakeJob(folder / "delivery", processes.jobs.staging)
        processes.graph.run(taking)
        found: OptimizeResult = processes.graph.run(processes.jobs.optimize())
        return found


def _compile(folder: Path, program: OptimizeResult, targets: tuple[str, ...]) -> Build:
    """Compile for the targets at once, as a release does, in fresh processes with fresh caches."""
    workspace = Path(tempfile.mkdtemp(dir=folder / "builds"))
    with Processes(
        workspace, Recipe(targets=targets), fresh=True, reads=(folder / "builds" / "program",)
    ) as processes:
        processes.graph.close()
        jobs = {t: processes.jobs.compile(program, t) for t in processes.targets}
        load = psutil.getloadavg()[0]
        # A process that is busy with its imports takes the job when it is through with them.
        futures = {t.slug: processes.compiler(t).submit(job) for t, job in jobs.items()}
        wait(futures.values())
        seconds = {slug: future.result().seconds for slug, future in futures.items()}
        compilers = {t.slug: psutil.Process(processes.compiler(t)._process.pid) for t in jobs}
        cpu = {f"CPU {slug}": cpu_seconds(process) for slug, process in compilers.items()}
    return Build(targets, max(seconds.values()), {**seconds, **cpu}, load)


def _release(folder: Path, targets: tuple[str, ...]) -> Build:
    recipe = folder / f"{'-'.join(targets)}.toml"
    recipe.write_text(f"targets = {json.dumps(targets)}\n")
    load = psutil.getloadavg()[0]
    delivery = str(folder / "delivery")
    command = handoff_command("release", delivery, "--recipe", str(recipe), "--rebuild")
    run = measure(command, folder)
    return Build(targets, run.wall_s, step_seconds(run.stderr), load)


def _print(rounds: list[list[Build]], parts: Sequence[str]) -> None:
    rows = [
        (
            str(number), " and ".join(build.targets), f"{build.wall_s:.1f}",
            *(f"{build.parts[part]:.1f}" if part in build.parts else "-" for part in parts),
            f"{build.load:.1f}",
        )
        for number, each in enumerate(rounds, 1)
        for build in each
    ]  # fmt: skip
    print_table("Two targets", ("round", "targets", "seconds", *parts, "load"), rows)
    ratios = sorted(map(ratio_of, rounds))
    print(
        f"both over the slower one alone: {statistics.median(ratios):.2f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f}, {len(ratios)} rounds)"
    )


if __name__ == "__main__":
    main()
