"""Deliver, read, compare and judge every model, and print the tables.

python -m tests.studies.corpus

Each model runs in a process of its own. With names, only those. `--one NAME` prints one row as
JSON, and `--write FILE` puts the tables between the marks in a Markdown file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten

from tests.marked import require_marks, write_between_marks
from tests.studies.corpus.careless import CARELESS
from tests.studies.corpus.models import MODELS
from tests.studies.corpus.table import CarelessRow, ModelRow, judge_careless, judge_model

_LIMIT_S = 600


def main() -> int:
    """Print the tables; return 1 unless every model is delivered, identical and not unsound."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--one", action="store_true")
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    if args.one:
        _print_one(args.names[0])
        return 0
    require_marks(args.write, "corpus")
    chosen = [model for model in MODELS if not args.names or model.name in args.names]
    rows = []
    for model in chosen:
        row = _judge_apart(model.name, model.kind)
        rows.append(row)
        took = f"deliver {row.deliver_s:.1f} s, read {row.read_s:.2f} s, judge {row.judge_s:.1f} s"
        result = f"{row.captured_by or 'not delivered'}, {row.verdict} {row.found}"
        print(f"{row.name}: {result} ({took})", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        careless = [judge_careless(one, Path(scratch) / one.name) for one in CARELESS]
    text = "\n".join([*_model_table(rows), "", *_careless_table(careless)])
    print(text)
    if args.write:
        write_between_marks(args.write, "corpus", text)
    good = [row for row in rows if row.identical and row.verdict != "unsound"]
    named = [row for row, one in zip(careless, CARELESS, strict=True) if one.named in row.reasons]
    print(f"\n{len(good)} of {len(rows)} models delivered, identical and not called unsound; "
          f"{len(named)} of {len(careless)} careless deliveries named")  # fmt: skip
    return 0 if len(good) == len(rows) and len(named) == len(careless) else 1


def _print_one(name: str) -> None:
    (model,) = [model for model in MODELS if model.name == name]
    with tempfile.TemporaryDirectory() as scratch:
        print("\n" + json.dumps(asdict(judge_model(model, Path(scratch)))))


def _judge_apart(name: str, kind: str) -> ModelRow:
    command = [sys.executable, "-W", "ignore", "-m", "tests.studies.corpus", "--one", name]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return ModelRow(name, kind, found=f"no result within {_LIMIT_S} s")
    last = (ended.stdout.strip().splitlines() or [""])[-1]
    if ended.returncode != 0 or not last.startswith("{"):
        reason = (ended.stderr.strip().splitlines() or ["nothing printed"])[-1]
        return ModelRow(name, kind, found=f"failed: {reason[:300]}")
    return ModelRow(**json.loads(last))


def _model_table(rows: list[ModelRow]) -> list[str]:
    lines = [
        "| model | kind | captured by | batch | loads, identical | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        same = "identical" if row.identical else "loads" if row.loads else "no"
        verdict = f"{row.verdict} ({row.found})" if row.found else row.verdict
        batch = "dynamic" if row.dynamic else "fixed"
        lines.append(
            f"| {row.name} | {row.kind} | {row.captured_by or 'nothing'} "
            f"| {batch} | {same} | {verdict} |"
        )
    return lines


def _careless_table(rows: list[CarelessRow]) -> list[str]:
    lines = ["| careless delivery | outcome | what it is named for |", "|---|---|---|"]
    for row, careless in zip(rows, CARELESS, strict=True):
        parts = [part for part in row.reasons.split("; ") if careless.named in part]
        first = shorten((parts or [row.reasons])[0].replace("|", "\\|"), 150, placeholder=" …")
        lines.append(f"| {row.name} | {row.outcome} | {first} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
