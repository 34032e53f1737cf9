"""One model's races: what could be made of it, how exact, how fast.

python -m tests.studies.benchmarks.served.race resnet18 FOLDER

With `--float32 FOLDER`, which `build` has filled by the float32 recipes, the release of those takes
part beside the one of `--recipes`.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import psutil

from handoff.artifacts.release.evidence import Candidate, Goal, choose
from handoff.tasks.registry.target_record import with_lap
from handoff.tasks.timing import race as choosing
from handoff.tasks.timing.messages import RaceJob, RaceLap
from tests.studies.benchmarks.failures import NotMadeError
from tests.studies.benchmarks.served.build import PRECISIONS, VARIANTS_FILE, recipe_of
from tests.studies.benchmarks.served.competitors import RIVALS
from tests.studies.benchmarks.served.racer import Racer, hold_threads, write_case
from tests.studies.benchmarks.served.turns import Race, hold_quietly, run_in_turns
from tests.studies.corpus.models import MODELS

HANDOFF = "Handoff"
# What the float32 recipes choose, where other recipes' release is raced.
HANDOFF_FLOAT32 = "Handoff float32"
OURS = (HANDOFF_FLOAT32, HANDOFF)
# Of a race: how far races differ is what tells the noise.
_LEAST_ROUNDS = 7


@dataclass
class Row:
    """What came of a model's races.

    `chosen` is the variant that the release's own race picked among those of `laps`, by the name
    that the release is raced by, and `built` the commits of the code that built them. `error` is
    each competitor's largest difference to eager over the RMS of eager's outputs, `failed` why one
    is missing. `load` is the machine's before, and `races` are the quietest that were held.
    """

    name: str
    kind: str
    batch: int
    threads: int
    load: float
    chosen: dict[str, str] = field(default_factory=dict)
    laps: dict[str, dict[str, RaceLap]] = field(default_factory=dict)
    built: list[str] = field(default_factory=list)
    error: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    races: list[Race] = field(default_factory=list)


def main() -> None:
    """Race one model; print its row as JSON."""
    args = _arguments()
    threads, load = hold_threads(), psutil.getloadavg()[0]
    (model,) = [model for model in MODELS if model.name == args.name]
    row = Row(model.name, model.kind, model.batch, threads, load)
    others = args.folder / "others"
    racers = {name: others for name in args.competitors.split(",") if name}
    if args.float32:
        racers |= _choose(row, HANDOFF_FLOAT32, args.float32, "float32")
    racers |= _choose(row, HANDOFF, args.folder, args.recipes, all_variants=args.variants)
    case = write_case(model.name, args.folder)
    hold = partial(race, row, racers, case, rounds=args.rounds, budget_s=args.budget_s)
    row.races = hold_quietly(hold, args.races)
    print("\n" + json.dumps(asdict(row)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument(
        "folder", type=Path, help="what tests.studies.benchmarks.served.build has written"
    )
    parser.add_argument("--competitors", default=",".join(RIVALS["float32"]))
    parser.add_argument("--recipes", default="float32", choices=PRECISIONS)
    parser.add_argument("--float32", type=Path)
    parser.add_argument("--variants", action="store_true", help="race those not chosen, too")
    parser.add_argument("--races", type=int, default=6, help="in new processes each")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--budget-s", type=float, default=4.0, help="of each race")
    return parser.parse_args()


def race(
    row: Row, competitors: dict[str, Path], case: Path, *, rounds: int, budget_s: float
) -> Race:
    """Make every competitor, as many at once as there are cores, and time them in turns.

    `competitors` has the folder of each one's file, `case` the inputs. Who has failed once is left
    out.
    """
    wanted = [name for name in competitors if name not in row.failed]
    racers: dict[str, Racer] = {}

    def make(name: str) -> None:
        try:
            racer = Racer(row.name, name, competitors[name], case)
        except NotMadeError as error:
            row.failed[name] = str(error)
            print(f"{row.name}: no {name}: {error}", file=sys.stderr)
        else:
            racers[name] = racer
            row.error[name] = max(racer.error, row.error.get(name, 0.0))

    try:
        with ThreadPoolExecutor(row.threads) as pool:
            list(pool.map(make, wanted))
        return run_in_turns(
            {name: racers[name].turn for name in wanted if name in racers},
            rounds=rounds, least=_LEAST_ROUNDS, budget_s=budget_s,
        )  # fmt: skip
    finally:
        for racer in racers.values():
            racer.close()


def _choose(
    row: Row, name: str, folder: Path, precision: str, *, all_variants: bool = False
) -> dict[str, Path]:
    """Return the folder of the release by `name`; none where it is refused, as `row` then says."""
    built = json.loads((folder / VARIANTS_FILE).read_text(encoding="utf-8"))
    row.built.append(built["commit"])
    accepted = {one["name"]: one for one in built["variants"] if one["accepted"]}
    if "plain" not in accepted:
        row.failed[name] = f"the release is refused: {built['variants'][0]['reasons']}"
        return {}
    chosen, laps = choose_variant(accepted, recipe_of(row.name, precision).search.goal)
    row.chosen[name], row.laps[name] = chosen, laps
    releases = {one: Path(accepted[one]["release"]) for one in accepted}
    return {name: releases[chosen], **(releases if all_variants else {})}


def choose_variant(
    accepted: dict[str, dict[str, str]], goal: Goal
) -> tuple[str, dict[str, RaceLap]]:
    """Return the variant that a release would register, by its own race, and all variants' laps."""
    packages = tuple(Path(one["packages"]) for one in accepted.values())
    raced = choosing.run(RaceJob(packages, Path(accepted["plain"]["reference"]))).laps
    laps = dict(zip(accepted, raced, strict=True))
    candidates = (
        with_lap(Candidate(name, accepted=True, reasons=()), lap) for name, lap in laps.items()
    )
    return choose(tuple(candidates), goal).name, laps


if __name__ == "__main__":
    main()
