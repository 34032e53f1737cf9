"""Release every model with the default recipe, as far as a verdict.

python -m tests.studies.corpus.release

Each is delivered as by `python -m tests.studies.corpus`, and taken through a release's own steps
and processes: in, judged, optimized, run as the reference, compiled and verified, one step after
another so that their seconds can be compared. With names, only those; `demo` stands for the demo's
models. FOLDER keeps a row for each, and what was made on the way: run again with the same folder,
only what wasn't released is done. `--write FILE` puts the table between the marks in a Markdown
file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from examples.demo import MODELS as DEMO
from handoff.artifacts.conformance.storage import shipped_table
from handoff.artifacts.conformance.table import KnownFault, toolchain_digest
from handoff.artifacts.errors import HandoffError
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import CpuTarget, native_cpu_target
from handoff.tasks.compile.toolchain import conformance_toolchain
from handoff.tasks.conformance.known_faults import find_known_faults
from handoff.tasks.deliver import step as deliver
from handoff.tasks.deliver.messages import DeliverJob
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.optimize.messages import OptimizeResult
from handoff.tasks.registry.assemble import refuse_unsound
from handoff.tasks.release.processes import Processes
from handoff.tasks.verify.messages import VerifyJob
from tests.marked import require_marks, write_between_marks
from tests.studies.corpus.models import MODELS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_LIMIT_S = 900.0
_FACTORIES = {f"demo-{name}": factory for name, factory in DEMO}
MODEL_NAMES = (*(model.name for model in MODELS), *_FACTORIES)
_MARKS = "corpus released"
_ROWS_FILE = "rows.jsonl"


@dataclass(frozen=True)
class ReleaseRow:
    """What happened to a model: where it was refused and why, or nothing where it was released.

    Of the numbers that were compared on usual inputs, `incomparable` are those of which rounding
    alone moves each by about its own size. `cases` counts inputs, and `load` is the machine's at
    the beginning.
    """

    name: str
    refused_by: str = ""
    reason: str = ""
    cases: int = 0
    elements: int = 0
    incomparable: int = 0
    reference_s: float = 0.0
    compile_s: float = 0.0
    verify_s: float = 0.0
    load: float = 0.0


class _ReleaseRun:
    """The steps of one release, each with what it took."""

    def __init__(self, row: ReleaseRow, folder: Path) -> None:
        self.row, self.step = row, "deliver"
        self._folder = folder

    def go(self) -> None:
        """Go all the way; the row says how far it went, also where a step refuses."""
        deliver_model(self.row.name, self._folder / "delivery")
        with Processes(
            self._folder / "workspace", Recipe(), delivery=self._folder / "delivery"
        ) as processes:
            optimized = self._optimize(processes)
            target = native_cpu_target()
            self._verify(processes, optimized, target)

    def _run(self, process: Any, job: object, step: str) -> tuple[Any, float]:
        self.step = step
        done = process.submit(job, limit_s=_LIMIT_S).result()
        return done.result, done.seconds

    def _optimize(self, processes: Processes) -> OptimizeResult:
        taking = IntakeJob(self._folder / "delivery", processes.jobs.staging)
        self._run(processes.graph, taking, "take in")
        judged, _ = self._run(processes.graph, processes.jobs.traceability(), "inspect")
        refuse_unsound(judged)
        optimized: OptimizeResult
        optimized, _ = self._run(processes.graph, processes.jobs.optimize(), "optimize")
        return optimized

    def _verify(self, processes: Processes, optimized: OptimizeResult, target: CpuTarget) -> None:
        referring = processes.jobs.reference(optimized, _known_wrong(optimized, target))
        reference, reference_s = self._run(processes.runner(), referring, "reference")
        self.row = replace(self.row, cases=len(reference.cases), reference_s=reference_s)
        job = replace(processes.jobs.compile(optimized, target), cache=None)
        compiled, _ = self._run(processes.compiler(target), job, "compile")
        self.row = replace(self.row, compile_s=compiled.compile_s)
        verifying = VerifyJob(
            job.folder, reference.file, processes.jobs.recipe, compiled.library.digest,
            compiled.assumed, tuple(spec.name for spec in optimized.outputs), target.slug,
            processes.jobs.staging, optimized.reference,
        )  # fmt: skip
        verified, verify_s = self._run(processes.runner(target), verifying, "verify")
        usual = [one for one in verified.deviations if not one.special]
        self.row = replace(
            self.row,
            verify_s=verify_s,
            elements=sum(one.elements for one in usual),
            incomparable=sum(one.incomparable for one in usual),
            refused_by="verify" if verified.reasons else "",
            reason=(verified.reasons or ("",))[0],
        )


def deliver_model(name: str, folder: Path) -> None:
    """Deliver a model of the corpus, or of the demo, to `folder`."""
    if name in _FACTORIES:
        deliver.run(DeliverJob(_FACTORIES[name], Path.cwd(), folder, name))
        return
    (model,) = [model for model in MODELS if model.name == name]
    model.deliver(*model.make(), folder)


def _known_wrong(optimized: OptimizeResult, target: CpuTarget) -> tuple[KnownFault, ...]:
    """Return what the table that comes with the code knows of the graph's operators."""
    table = shipped_table(toolchain_digest(conformance_toolchain("g++", target, {})))
    return find_known_faults(table, optimized.calls) if table else ()


def release(name: str, folder: Path) -> ReleaseRow:
    """Take one model from its delivery to the verdict on its package, in `folder`."""
    attempt = _ReleaseRun(ReleaseRow(name, load=round(os.getloadavg()[0], 1)), folder)
    try:
        attempt.go()
    except HandoffError as error:
        return replace(attempt.row, refused_by=attempt.step, reason=str(error))
    return attempt.row


def _release_apart(name: str, folder: Path) -> ReleaseRow:
    """Release a model in a process of its own; what that can't report is its reason."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-W", "ignore", "-m", "tests.studies.corpus.release", "--one", name]
    with (folder / "log").open("w", encoding="utf-8") as log:
        try:
            ended = subprocess.run(
                [*command, "--folder", str(folder)], stdout=subprocess.PIPE, stderr=log, text=True,
                timeout=_LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return ReleaseRow(name, "time", f"no verdict within {_LIMIT_S:.0f} s")
    last = (ended.stdout.strip().splitlines() or [""])[-1]
    if ended.returncode or not last.startswith("{"):
        return ReleaseRow(name, "a failure", f"exit status {ended.returncode}: see {folder}/log")
    return ReleaseRow(**json.loads(last))


def table_of(rows: list[ReleaseRow]) -> str:
    """Return the rows as a table in Markdown, and a line that sums them up."""
    lines = [
        "| model | verdict | inputs | not comparable | reference | compile | verify | "
        "verify / compile |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        reason = shorten(row.reason.replace("|", "/"), 160, placeholder=" …")
        verdict = f"refused by {row.refused_by}: {reason}" if row.refused_by else "released"
        share = f"{row.incomparable / row.elements:.2%}" if row.elements else ""
        ratio = f"{row.verify_s / row.compile_s:.2f}" if row.compile_s else ""
        lines.append(
            f"| {row.name} | {verdict} | {row.cases} | {share} | {row.reference_s:.1f} s | "
            f"{row.compile_s:.1f} s | {row.verify_s:.1f} s | {ratio} |"
        )
    refused = sum(bool(row.refused_by) for row in rows)
    ratios = [row.verify_s / row.compile_s for row in rows if row.compile_s]
    summary = f"{refused} of {len(rows)} refused wrongly"
    if ratios:
        summary += f"; verify/compile median {median(ratios):.2f}, at most {max(ratios):.2f}"
    return "\n".join([*lines, "", f"{summary}."])


def keep_row(row: DataclassInstance, file: Path) -> None:
    """Add a row to those that were kept in `file`."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(asdict(row)) + "\n")


def read_released(file: Path) -> dict[str, ReleaseRow]:
    """Return the kept rows of the models that were released, by their names."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    rows = (ReleaseRow(**json.loads(line)) for line in lines)
    return {row.name: row for row in rows if not row.refused_by}


def names_of(given: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return the models that a command line names; end it with a sentence for an unknown one."""
    names = [one for name in given for one in (_FACTORIES if name == "demo" else (name,))]
    if unknown := [name for name in names if name not in MODEL_NAMES]:
        known = ", ".join(("demo", *MODEL_NAMES))
        parser.error(f"expected models among {known}, got {', '.join(unknown)}")
    return names


def main() -> int:
    """Release what is missing, print the table; return 1 unless every model is released."""
    corpus = [model.name for model in MODELS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help="all of the corpus without one")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--one", metavar="MODEL", help="print that model's row as JSON")
    args = parser.parse_args()
    if args.one:
        print("\n" + json.dumps(asdict(release(args.one, args.folder))))
        return 0
    require_marks(args.write, _MARKS)
    wanted = names_of(args.names or corpus, parser)
    file = args.folder.absolute() / _ROWS_FILE
    rows = read_released(file)
    for name in wanted:
        if name not in rows:
            rows[name] = _release_apart(name, file.parent / name)
            keep_row(rows[name], file)
            print(table_of([rows[name]]).splitlines()[2], file=sys.stderr, flush=True)
    text = table_of([rows[name] for name in wanted])
    print(text)
    if args.write:
        write_between_marks(args.write, _MARKS, text)
    return int(any(rows[name].refused_by for name in wanted))


if __name__ == "__main__":
    sys.exit(main())
