"""The speed of what Handoff registers, beside everything a model could be served with instead.

python -m tests.benchmarks.served [MODEL...] --folder FOLDER

Builds all models of the public corpus as a release does, two at once, then races one after the
other in processes of their own, and prints the table. FOLDER keeps the packages, and
FOLDER/standings.json what was measured: run again with the same folder, and only what is missing is
done. `--write FILE` puts the tables between the marks of a Markdown file, `--picture FILE` draws
them and puts what was measured beside the picture, as JSON: with that as FOLDER/standings.json
another day goes on with it.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from artifacts.record import from_plain, to_plain
from tests.benchmarks.served.build import PRECISIONS
from tests.benchmarks.served.competitors import COMPETITORS
from tests.benchmarks.served.plot import draw
from tests.benchmarks.served.race import HANDOFF
from tests.benchmarks.served.table import ALLOWED, Standing, failures_of, table_of, verdict_of
from tests.benchmarks.served.turns import Race, Ratio
from tests.corpus.models import MODELS
from tests.marked import write_between_marks

_LIMIT_S = 3600
# At once: each spends most of its time in one compiler.
_BUILDS = 2
_TOLD = ("torch", "onnxruntime", "openvino")


def main() -> None:
    """Measure what is missing, and tell it all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument(
        "--competitors", default=",".join(COMPETITORS), help="of these, eager first"
    )
    parser.add_argument("--recipes", default="float32", choices=PRECISIONS)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    kept = given.folder / "standings.json"
    found = read_standings(kept) if kept.exists() else {}
    options = ("--recipes", given.recipes, "--competitors", given.competitors)
    missing = [
        one.name for one in MODELS
        if one.name not in found and (not given.names or one.name in given.names)
    ]  # fmt: skip
    folders = {name: (given.folder / name).absolute() for name in missing}
    # Nothing is timed yet.
    with ThreadPoolExecutor(_BUILDS) as pool:
        list(pool.map(lambda name: _build(name, folders[name], options), missing))
    for name in missing:
        ended = _child("race", name, folders[name], *options)
        if ended is None:
            continue
        # All rounds of all races, beside the summary.
        (folders[name] / "races.json").write_text(ended + "\n", encoding="utf-8")
        found[name] = _summarize(json.loads(ended), ALLOWED[given.recipes])
        keep_standings(found.values(), kept)
        print(table_of([found[name]])[2], file=sys.stderr, flush=True)
    standings = [found[model.name] for model in MODELS if model.name in found]
    days = " and ".join(sorted({one.day for one in standings}))
    text = "\n".join([f"{days}, {_told_of_the_machine()}", "", *table_of(standings), "",
                      *verdict_of(standings), "", *failures_of(standings)])  # fmt: skip
    print(text)
    if given.write:
        write_between_marks(given.write, f"served in {given.recipes}", text)
    if given.picture:
        draw(standings, given.picture)
        keep_standings(standings, given.picture.with_suffix(".json"))


def read_standings(kept: Path) -> dict[str, Standing]:
    """Return what was measured, by the models' names."""
    standings = (from_plain(Standing, one) for one in json.loads(kept.read_text(encoding="utf-8")))
    return {one.name: one for one in standings}


def keep_standings(standings: Iterable[Standing], kept: Path) -> None:
    """Write what was measured."""
    text = json.dumps([to_plain(one) for one in standings], indent=1)
    kept.write_text(text + "\n", encoding="utf-8")


def _build(name: str, folder: Path, options: tuple[str, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "variants.json").exists():
        _child("build", name, folder, *options)


def _child(step: str, name: str, folder: Path, *options: str) -> str | None:
    """Run one step of one model; return the last line that it printed, None if it failed."""
    module = f"tests.benchmarks.served.{step}"
    command = [sys.executable, "-W", "ignore", "-m", module, name, str(folder), *options]
    log = folder / f"{step}.log"
    with log.open("w", encoding="utf-8") as errors:
        try:
            ended = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=_LIMIT_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            print(f"{name}: {step} took more than {_LIMIT_S} s, see {log}", file=sys.stderr)
            return None
    if ended.returncode:
        print(f"{name}: {step} failed with {ended.returncode}, see {log}", file=sys.stderr)
        return None
    return (ended.stdout.strip().splitlines() or [""])[-1]


def _summarize(row: dict[str, Any], allowed: float) -> Standing:
    races = [Race(**race) for race in row["races"]]
    names = [name for name in races[0].seconds if all(name in race.seconds for race in races)]

    def ratio(slow: str, fast: str) -> Ratio:
        return Ratio.across(race.ratio(slow, fast) for race in races)

    return Standing(
        name=row["name"], kind=row["kind"], day=f"{datetime.now(UTC):%Y-%m-%d}", batch=row["batch"],
        rounds=sum(len(race.seconds["eager"]) for race in races), chosen=row["chosen"],
        eager_ms=statistics.median(race.median_s("eager") for race in races) * 1e3,
        over_eager={name: ratio("eager", name) for name in names if name != "eager"},
        handoff_over={
            name: ratio(name, HANDOFF) for name in names if HANDOFF in names and name != HANDOFF
        },
        error=row["error"], allowed=allowed, failed=row["failed"], load=row["load"],
        others=max(race.others for race in races),
    )  # fmt: skip


def _told_of_the_machine() -> str:
    from importlib.metadata import version

    cpu = next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), platform.machine(),
    )  # fmt: skip
    versions = ", ".join(f"{name} {version(name)}" for name in _TOLD)
    return f"{cpu}, Python {platform.python_version()}, {versions}."


if __name__ == "__main__":
    main()
