"""Which faults the gate catches: each planted, compiled and verified as a release is."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

import torch

from handoff.artifacts.errors import HandoffError
from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.optimize.check import first_difference
from handoff.tasks.optimize.programs import load_program
from handoff.tasks.verify.messages import VerifyResult
from handoff.tasks.verify.reference import load_cases
from tests.studies.faults.code_kinds import CODE_KINDS
from tests.studies.faults.graph_kinds import GRAPH_KINDS
from tests.studies.faults.planting import CodeFault, Fault, NotPlanted
from tests.studies.faults.releasing import (
    FIGURES_FILE,
    PreparedModel,
    Verifier,
    compile_prepared,
    keep_figures,
    prepare,
    refusal_of,
)
from tests.studies.faults.toys import TOYS

KINDS: tuple[Fault, ...] = (*GRAPH_KINDS, *CODE_KINDS)


@dataclass(frozen=True)
class KindRow:
    """What happened to a fault: the verdict's reasons, none where it was not caught.

    `cases` counts the cases of the plan in which it showed, `operator` is the first one of the
    graph that differs from the right one's, where the fault is in the graph. One that could not be
    planted is caught by nobody, and says why.
    """

    fault: Fault
    result: VerifyResult
    not_planted: str = ""
    operator: str = ""

    @property
    def caught(self) -> bool:
        """Return whether the package was refused."""
        return bool(self.result.reasons)

    @property
    def summary(self) -> str:
        """What caught it, in words."""
        if self.not_planted:
            return f"**not planted**: {self.not_planted}"
        return self.result.reasons[0] if self.caught else "**not caught**"

    @property
    def cases(self) -> int:
        """In how many cases of the plan an output broke a rule."""
        return len({d.case for d in self.result.deviations if d.reasons})


class Bench:
    """The toy models, each delivered, compiled and verified without a fault before the first one.

    A model whose right package is refused says nothing about faults, and ends the run.
    """

    def __init__(self, folder: Path) -> None:
        """Work in `folder`."""
        self.folder = folder
        self.cache = folder / "packages"
        self.verifier = Verifier(folder / "verify.log")
        self._prepared: dict[str, PreparedModel] = {}
        self._count = 0

    def prepared(self, model: str, dtype: torch.dtype = torch.float32) -> PreparedModel:
        """Return the model's program and reference, once its right package was accepted."""
        name = f"{model}-{str(dtype).removeprefix('torch.')}"
        if name not in self._prepared:
            made = prepare(TOYS[model], self.folder / name, Recipe(), dtype=dtype)
            right = self.verify(made, None)
            if not right.accepted:
                raise AssertionError(f"the right package of {name} was refused: {right.reasons}")
            self._prepared[name] = made
        return self._prepared[name]

    def verify(self, prepared: PreparedModel, fault: Fault | None) -> VerifyResult:
        """Return the verdict on the package that is compiled with the fault."""
        self._count += 1
        folder = self.folder / f"built-{self._count}"
        try:
            compiled = compile_prepared(prepared, folder, self.cache, fault)
        except HandoffError as error:
            return refusal_of(error)
        return self.verifier.verify(prepared, folder, compiled)

    def judge(self, fault: Fault, dtype: torch.dtype = torch.float32) -> KindRow:
        """Plant the fault and return what happened to it."""
        prepared = self.prepared(fault.model, dtype)
        row = KindRow(
            fault, self.verify(prepared, fault), operator=_first_operator(prepared, fault)
        )
        plain = {"fault": fault.name, "what": fault.what, "dtype": str(dtype)}
        keep_figures(plain, row.result, self.folder / FIGURES_FILE)
        return row

    def close(self) -> None:
        """End the process that verifies."""
        self.verifier.close()


def _first_operator(prepared: PreparedModel, fault: Fault) -> str:
    """Return the first node that a fault in the graph makes differ beyond the tolerance, or ''."""
    if isinstance(fault, CodeFault):
        return ""
    right, wrong = load_program(prepared.program), load_program(prepared.program)
    fault.plant(wrong)
    wrong.graph_module.recompile()
    drawn = [case for case in load_cases(prepared.reference) if case.values == "drawn"]
    named = (first_difference(right, wrong, case.inputs, Recipe()) for case in drawn)
    return next(filter(None, named), "")


def judge_kinds(chosen: Iterable[Fault], folder: Path) -> list[KindRow]:
    """Plant each fault and return the rows; print each as it is known."""
    bench = Bench(folder)
    rows = []
    try:
        for fault in chosen:
            try:
                row = bench.judge(fault)
            except NotPlanted as error:
                row = KindRow(fault, VerifyResult((), ()), str(error))
            print(f"{fault.name}: {row.summary}", file=sys.stderr, flush=True)
            rows.append(row)
    finally:
        bench.close()
    return rows


def kinds_table(rows: Iterable[KindRow]) -> list[str]:
    """Return the fault table as Markdown."""
    lines = [
        "| kind | what is wrong | model | planted in | cases | caught by | first named operator |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        fault = row.fault
        place = "C++" if isinstance(fault, CodeFault) else "graph"
        by = row.summary.replace("|", "\\|")
        lines.append(
            f"| {fault.name} | {fault.what} | {fault.model} | {place} | {row.cases} "
            f"| {shorten(by, 150, placeholder=' …')} | {row.operator} |"
        )
    return lines
