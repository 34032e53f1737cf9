"""python -m tests.studies.outages: what a release survives, by kind of fault.

With names of parts, only those; without any, all of them. `--write FILE` puts each table between
its marks in a Markdown file, as it grows. `--every N` does only each N-th fault, `--minutes M` ends
a part after so long, and `--only TEXT` lets only those faults befall a served stack whose names
hold the text: their rows take the places of earlier ones. Ends with 1 where anything was
half-visible, lost or left.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tests.marked import require_marks, text_between_marks, write_between_marks
from tests.studies.outages import (
    full_disks,
    kills,
    mlflow_faults,
    races,
    releases,
    s3_faults,
    whole_races,
)
from tests.studies.outages.children import run_in_child
from tests.studies.outages.numbered_faults import NumberedFaults, mlflow_process
from tests.studies.outages.outcomes import Outcome, outcome_table
from tests.studies.outages.registries import Place, make_place, release, release_first
from tests.studies.outages.served import striking, team
from tests.studies.outages.served.survivals import Survival, survival_table, with_earlier_rows

# Landlock's bar is in force only where the home isn't in the platform's temporary folder.
_ROOT = Path("/var/tmp")


def main() -> int:
    """Run what was asked for and print its tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=(*_PARTS, []), default=[])
    parser.add_argument("--write", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    # What was started ends with this, too, when it is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    import boto3  # noqa: F401 - forks have it then
    import mlflow  # noqa: F401

    for part in args.parts or list(_PARTS):
        require_marks(args.write, f"outages {part}")
    all_good = True
    for part in args.parts or list(_PARTS):
        with tempfile.TemporaryDirectory(prefix="handoff-outages-", dir=_ROOT) as scratch:
            all_good &= _run(part, Path(scratch), args)
    return 0 if all_good else 1


def _run(part: str, scratch: Path, args: argparse.Namespace) -> bool:
    began = time.monotonic()
    outcomes: list[Any] = []
    is_stack = part in _STACKS
    strike = partial(_STACKS[part], only=args.only) if is_stack else _PARTS[part]
    for outcome in strike(scratch, args.every):
        outcomes.append(outcome)
        if not outcome.is_survived:
            print(f"NOT SURVIVED: {outcome.describe()}", file=sys.stderr, flush=True)
        minutes = (time.monotonic() - began) / 60
        # A fault of the served stack befalls several things at once, which are a row each.
        faults = len({outcome.fault for outcome in outcomes} if is_stack else outcomes)
        summary = f"{faults} faults in {minutes:.0f} min on {os.cpu_count()} cores, "
        table = survival_table if is_stack else outcome_table
        rows = table(outcomes)
        if args.write and args.only:
            before = text_between_marks(args.write, f"outages {part}").splitlines()
            rows = with_earlier_rows(rows, before)
        lines = [*rows, "", f"{summary}{datetime.now(UTC):%Y-%m-%d}."]
        if args.write:
            write_between_marks(args.write, f"outages {part}", "\n".join(lines))
        if minutes > args.minutes:
            break
    print("\n".join([f"{part}:", *lines]), flush=True)
    return bool(outcomes) and all(outcome.is_survived for outcome in outcomes)


def _kills(scratch: Path, every: int) -> Iterator[Outcome]:
    parts = kills.parts_of_a_release(make_place(scratch / "names"))
    for number, where in enumerate(parts):
        place = make_place(scratch / str(number))
        work, is_committed = kills.parts_of_a_release(place)[where]
        kills.prepare(place, is_committed=is_committed)

        def again(place: Place = place) -> object:
            return release(place.registry, place.second)

        yield from kills.kill_everywhere(place, where, work, again, every=every)


def _releases(scratch: Path, every: int) -> Iterator[Outcome]:
    workshop = releases.open_workshop(scratch / "workshop")
    workshop.restore()
    began = time.monotonic()
    workshop.run("release", str(workshop.root / "second"))
    lasts_s = time.monotonic() - began
    for kill in releases.planned_kills(1, lasts_s)[::every]:
        outcome = releases.kill_release(workshop, kill)
        print(f"{outcome.ended} {outcome.message}", file=sys.stderr, flush=True)
        yield outcome


def _s3(scratch: Path, every: int) -> Iterator[Outcome]:
    with s3_faults.open_bench(scratch / "bench") as bench:
        yield from s3_faults.inject_everywhere(bench, every=every, lasting_every=8 * every)


def _mlflow(scratch: Path, every: int) -> Iterator[Outcome]:
    place = make_place(scratch / "locked")
    run_in_child(lambda: release_first(place))
    for seconds in (1.0, None):
        yield mlflow_faults.lock_database(place, seconds)
    with mlflow_process(scratch) as address, NumberedFaults(address) as server:
        bench = mlflow_faults.MlflowBench(scratch / "served", address, server)
        yield from mlflow_faults.inject_everywhere(bench, every=every, lasting_every=8 * every)


def _disks(scratch: Path, every: int) -> Iterator[Outcome]:
    with full_disks.small_disk(scratch / "disk") as disk:
        place = make_place(disk, kept=scratch / "kept")
        run_in_child(lambda: release_first(place, is_shown=False))
        for where, (work, versions) in full_disks.parts_on_a_disk(place).items():
            yield from full_disks.fill_everywhere(
                place, where, work, again=work, versions=versions, every=every
            )
    with full_disks.small_disk(scratch / "catalogue") as disk:
        place = make_place(disk, kept=scratch / "shown")
        run_in_child(lambda: release_first(place))

        def again(place: Place = place) -> object:
            return release(place.registry, place.second)

        yield from full_disks.fill_everywhere(
            place, "a whole release, MLflow's files there, too", again, again=again,
            every=8 * every,
        )  # fmt: skip


def _races(scratch: Path, every: int) -> Iterator[Outcome]:
    place = make_place(scratch / "place")
    run_in_child(lambda: release_first(place))
    deliveries = races.some_deliveries(place, scratch / "deliveries")
    yield races.release_same(place, rebuild=False)
    yield races.release_same(place, rebuild=True)
    yield races.release_others(place, deliveries)
    for _ in range(0, 3, every):
        yield races.promote_at_once(place)
    if every == 1:
        workshop = releases.open_workshop(scratch / "workshop")
        yield whole_races.release_at_once(workshop, rebuild=False)
        yield whole_races.release_at_once(workshop, rebuild=True)
        yield whole_races.promote_at_once(workshop)


def _served(scratch: Path, every: int, only: str = "") -> Iterator[Survival]:
    return striking.strike_everywhere(scratch / "served", every, only)


def _team(scratch: Path, every: int, only: str = "") -> Iterator[Survival]:
    return team.run_stories(scratch / "team", every, only)


_STACKS = {"served": _served, "team": _team}
_PARTS: dict[str, Callable[[Path, int], Iterator[Outcome | Survival]]] = {
    "kills": _kills,
    "s3": _s3,
    "mlflow": _mlflow,
    "disks": _disks,
    "races": _races,
    "releases": _releases,
    **_STACKS,
}


if __name__ == "__main__":
    sys.exit(main())
