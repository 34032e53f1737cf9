"""One model's race: what could be made of it, how exact, how fast.

python -m tests.benchmarks.served.race resnet18 FOLDER
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import torch

from artifacts.evidence import Candidate, Goal, choose
from artifacts.steps import RaceJob, RaceLap
from tasks import race as choosing
from tasks.target_record import with_lap
from tests.benchmarks.served.build import PRECISIONS, recipe_of
from tests.benchmarks.served.competitors import COMPETITORS
from tests.benchmarks.served.racer import NotMadeError, Racer, write_case
from tests.benchmarks.served.turns import Race, run_in_turns
from tests.corpus.models import MODELS, CorpusModel

HANDOFF = "Handoff"
# Of a race: how far races differ is what tells the noise.
_LEAST_ROUNDS = 7


@dataclass
class Row:
    """What came of a model's race.

    `chosen` is the variant that the release's own race picked among those of `laps`, `error` each
    competitor's largest difference to eager over the RMS of eager's outputs, `failed` why one is
    missing. `load` is the machine's before.
    """

    name: str
    kind: str
    batch: int
    threads: int
    chosen: str = ""
    laps: dict[str, RaceLap] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    races: list[Race] = field(default_factory=list)
    load: float = 0.0


def main() -> None:
    """Race one model; print its row as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("folder", type=Path, help="what tests.benchmarks.served.build has written")
    parser.add_argument("--competitors", default=",".join(COMPETITORS))
    parser.add_argument("--recipes", default="float32", choices=PRECISIONS)
    parser.add_argument("--variants", action="store_true", help="race those not chosen, too")
    parser.add_argument("--races", type=int, default=6, help="in new processes each")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--budget-s", type=float, default=4.0, help="of each race")
    given = parser.parse_args()
    (model,) = [model for model in MODELS if model.name == given.name]
    others = given.folder / "others"
    rivals = {name: others for name in given.competitors.split(",") if name}
    goal = recipe_of(model.name, given.recipes).search.goal
    row, packages = _released(model, given.folder, goal)
    if not given.variants:
        packages = {name: folder for name, folder in packages.items() if name == HANDOFF}
    case = write_case(model.name, given.folder)
    for _ in range(given.races):
        runners = {name: way for name, way in (rivals | packages).items() if name not in row.failed}
        row.races.append(race(row, runners, case, rounds=given.rounds, budget_s=given.budget_s))
    print("\n" + json.dumps(asdict(row)))


def race(
    row: Row, competitors: dict[str, Path], case: Path, *, rounds: int, budget_s: float
) -> Race:
    """Make every competitor, as many at once as there are cores, and time them in turns.

    `competitors` has the folder of each one's file, `case` the inputs.
    """
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
            list(pool.map(make, competitors))
        return run_in_turns(
            {name: racers[name].turn for name in competitors if name in racers},
            rounds=rounds, least=_LEAST_ROUNDS, budget_s=budget_s,
        )  # fmt: skip
    finally:
        for racer in racers.values():
            racer.close()


def _released(model: CorpusModel, folder: Path, goal: Goal) -> tuple[Row, dict[str, Path]]:
    """Return the packages by name, with the one first that a release would register.

    Its own race between the variants decides that. None where the release is refused.
    """
    threads, load = torch.get_num_threads(), psutil.getloadavg()[0]
    row = Row(model.name, model.kind, model.batch, threads, load=load)
    variants = json.loads((folder / "variants.json").read_text(encoding="utf-8"))
    accepted = {one["name"]: Path(one["folder"]) for one in variants if one["accepted"]}
    if "plain" not in accepted:
        row.failed[HANDOFF] = f"the release is refused: {variants[0]['reasons']}"
        return row, {}
    laps = choosing.run(RaceJob(tuple(accepted.values()), Path(variants[0]["reference"]))).laps
    row.laps = dict(zip(accepted, laps, strict=True))
    row.chosen = choose(
        tuple(
            with_lap(Candidate(name, accepted=True, reasons=()), lap)
            for name, lap in row.laps.items()
        ),
        goal,
    ).name
    return row, {HANDOFF: accepted[row.chosen], **accepted}


if __name__ == "__main__":
    main()
