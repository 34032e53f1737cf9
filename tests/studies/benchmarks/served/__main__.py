"""The speed of what Handoff registers, beside everything a model could be served with instead.

python -m tests.studies.benchmarks.served [MODEL...] --folder FOLDER

Builds all models of the public corpus as a release does, two at once, then races one after the
other in processes of their own, and prints the table. FOLDER keeps the packages, and
FOLDER/standings.json what was measured: run again with the same folder, and only what is missing is
done. With other recipes than float32's what those would release takes part, too: it is built in the
folder of `--float32`, that of the float32 benchmark, where that hasn't done so (FOLDER/float32
without one). `--write FILE` puts the tables between the marks of a Markdown file, `--picture FILE`
draws them and puts what was measured beside the picture, as JSON: with that as
FOLDER/standings.json another day goes on with it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.marked import require_marks, write_between_marks
from tests.studies.benchmarks.served.build import PRECISIONS, VARIANTS_FILE
from tests.studies.benchmarks.served.competitors import COMPETITORS, RIVALS
from tests.studies.benchmarks.served.conditions import format_conditions
from tests.studies.benchmarks.served.plot import draw
from tests.studies.benchmarks.served.standing import (
    ALLOWED,
    EAGER,
    Standing,
    keep_standings,
    read_standings,
    summarize,
)
from tests.studies.benchmarks.served.table import failures_of, noise_of, table_of, verdict_of
from tests.studies.corpus.models import MODELS

# Of one step; a noisy machine has races held again.
_LIMIT_S = 7200
# At once: each spends most of its time in one compiler.
_BUILDS = 2


def main() -> None:
    """Measure what is missing, and print it all."""
    args = _arguments()
    kept = args.folder / "standings.json"
    found = read_standings(kept) if kept.exists() else {}
    missing = [one.name for one in MODELS if one.name in args.names and one.name not in found]
    _build_all(missing, args)
    for name in missing:
        standing = _race(name, args)
        if standing is not None:
            found[name] = standing
            keep_standings(found.values(), kept)
            print(table_of([standing])[2], file=sys.stderr, flush=True)
    standings = [found[model.name] for model in MODELS if model.name in found]
    if not standings:
        sys.exit("expected a model that could be raced, got none: see the logs named above")
    text = format_standings(standings)
    print(text)
    if args.write:
        write_between_marks(args.write, f"served in {args.recipes}", text)
    if args.picture:
        draw(standings, args.picture)
        keep_standings(standings, args.picture.with_suffix(".json"))


def format_standings(standings: list[Standing]) -> str:
    """Return all that is reported of the models' races, in Markdown."""
    parts = (
        format_conditions({one.name: one.conditions for one in standings}),
        table_of(standings),
        [noise_of(standings)],
        verdict_of(standings),
        failures_of(standings),
    )
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def unknown_among(given: Iterable[str], known: Iterable[str], what: str) -> str:
    """Return a sentence that names those that there aren't; '' where all are known."""
    known = list(known)
    unknown = [name for name in given if name not in known]
    if not unknown:
        return ""
    return f"expected {what} among {', '.join(known)}, got {', '.join(unknown)}"


def _arguments() -> argparse.Namespace:
    models = [model.name for model in MODELS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help="all of the corpus without one")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--recipes", default="float32", choices=PRECISIONS)
    parser.add_argument("--competitors", help="of these, eager first")
    parser.add_argument("--float32", type=Path, help="the float32 benchmark's folder")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    args.names = args.names or models
    args.competitors = args.competitors or ",".join(RIVALS[args.recipes])
    rivals = args.competitors.split(",")
    problem = unknown_among(args.names, models, "models") or unknown_among(
        rivals, COMPETITORS, "competitors"
    )
    if problem or rivals[0] != EAGER:
        parser.error(problem or f"expected {EAGER} as the first competitor, got {rivals[0]}")
    args.float32 = (args.float32 or args.folder / "float32").absolute()
    args.folder = args.folder.absolute()
    require_marks(args.write, f"served in {args.recipes}")
    return args


def _build_all(names: list[str], args: argparse.Namespace) -> None:
    """Build what isn't there yet; nothing is timed meanwhile."""
    competitors = ("--competitors", args.competitors)
    wanted = [(name, args.folder / name, args.recipes, competitors) for name in names]
    if args.recipes != "float32":
        # Its competitors have their files in the other folder.
        none = ("--competitors", "")
        wanted += [(name, args.float32 / name, "float32", none) for name in names]
    with ThreadPoolExecutor(_BUILDS) as pool:
        list(pool.map(lambda one: _build(*one), wanted))


def _build(name: str, folder: Path, recipes: str, options: tuple[str, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / VARIANTS_FILE).exists():
        _child("build", name, folder, "--recipes", recipes, *options)


def _race(name: str, args: argparse.Namespace) -> Standing | None:
    folder = args.folder / name
    options = ["--recipes", args.recipes, "--competitors", args.competitors]
    if args.recipes != "float32":
        options += ["--float32", str(args.float32 / name)]
    ended = _child("race", name, folder, *options)
    if ended is None:
        return None
    # All rounds of all races, beside the summary.
    (folder / "races.json").write_text(ended + "\n", encoding="utf-8")
    return summarize(json.loads(ended), ALLOWED[args.recipes])


def _child(step: str, name: str, folder: Path, *options: str) -> str | None:
    """Run one step of one model; return the last line that it printed, None if it failed."""
    module = f"tests.studies.benchmarks.served.{step}"
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


if __name__ == "__main__":
    main()
