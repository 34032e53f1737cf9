"""Models that are delivered with a contract, and judged as a release judges them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten
from typing import Literal

import torch
from torch import Tensor, nn

from handoff.artifacts.errors import HandoffError
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import native_cpu_target
from handoff.tasks.deliver.step import deliver
from handoff.tasks.inspect import step as traceability
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from handoff.tasks.localize import step as localize
from handoff.tasks.localize.messages import LocalizeJob
from handoff.tasks.optimize import step as optimize
from handoff.tasks.optimize.messages import OptimizeJob
from handoff.tasks.registry import assemble
from handoff.tasks.verify import reference
from handoff.tasks.verify.messages import ReferenceJob, VerifyResult
from tests.studies.faults.releasing import (
    FIGURES_FILE,
    PreparedModel,
    Verifier,
    compile_prepared,
    keep_figures,
)

Inputs = Mapping[str, Tensor]

# What finding the first wrong operator of one case may take.
_LOCALIZE_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model as a training team delivers it: what makes it, an example, what may be served.

    `ranges` are the ends of what an input may hold, where the contract declares that, and `batch`
    the sizes of axis 0 of all inputs; None stands for fixed shapes. `shows` makes inputs within the
    contract on which a wrong package can be told from a right one. They are for `confirming.py`
    alone: a release doesn't see them. `rtol` says what is right there, relative to the largest
    number of the same feature.
    """

    name: str
    build: Callable[[], nn.Module]
    example: Callable[[], Inputs]
    shows: Callable[[], Inputs]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    batch: tuple[int, int] | None = (1, 64)
    rows_are_apart: bool = True
    recipe: Recipe = field(default_factory=Recipe)
    rtol: float = 1e-4

    @property
    def slug(self) -> str:
        """The name as that of a folder and of a model."""
        return "".join(c if c.isalnum() else "-" for c in self.name.lower()).strip("-")

    def module(self) -> nn.Module:
        """Return the model, with the same weights every time."""
        torch.manual_seed(0)
        return self.build().eval()

    def inputs(self) -> Inputs:
        """Return the example, the same every time."""
        torch.manual_seed(1)
        return self.example()


@dataclass(frozen=True, kw_only=True)
class Report(Case):
    """A pattern of a public report: what must become of it, who is to blame, who sees it.

    `issue` is its number in PyTorch's tracker, 0 where none was found. `operator` is how the wrong
    operator's name begins, and `question` what its inputs have to ask, in plain words; both are ''
    for a right one.
    """

    issue: int
    must: Literal["refused", "released"]
    operator: str = ""
    question: str = ""


@dataclass(frozen=True)
class Judgement:
    """What happened to a case: where it ended, the verdict, the first operator named.

    `before` is the step that refused it before anything was compared; '' where verify judged it.
    """

    case: Case
    result: VerifyResult
    before: str = ""
    operator: str = ""
    blamed: str = ""
    seconds: float = 0.0

    @property
    def refused(self) -> bool:
        """Return whether the delivery is not released."""
        return bool(self.result.reasons)

    @property
    def summary(self) -> str:
        """The first reason, in a line."""
        if not self.refused:
            return "released"
        where = f"{self.before}: " if self.before else ""
        return where + shorten(self.result.reasons[0].replace("|", "/"), 180, placeholder=" …")


class Judge:
    """Delivers cases, one after another, and judges them by the steps of a release."""

    def __init__(self, folder: Path, *, localizes: bool = True) -> None:
        """Work in `folder`; with `localizes`, say which operator of a refused one is wrong."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._localizes = localizes
        self._verifier = Verifier(folder / "verify.log")
        self._step = ""

    def judge(self, case: Case) -> Judgement:
        """Return what happens to the delivery of the case."""
        began = time.monotonic()
        folder = self._folder / case.slug
        try:
            prepared = self._prepare(case, folder)
            self._step = "compile"
            compiled = compile_prepared(prepared, folder, self._folder / "packages")
            result = self._verifier.verify(prepared, folder, compiled, case.recipe)
            judged = Judgement(case, result)
        except HandoffError as error:
            judged = self.refusal(case, self._step, str(error))
        if judged.refused and not judged.before and self._localizes:
            judged = self._with_operator(judged, prepared)
        judged = replace(judged, seconds=time.monotonic() - began)
        plain = {"case": case.name, "before": judged.before, "operator": judged.operator}
        keep_figures({**plain, "blamed": judged.blamed}, judged.result, self._folder / FIGURES_FILE)
        return judged

    @staticmethod
    def refusal(case: Case, step: str, reason: str) -> Judgement:
        """Return what happens to a case that `step` refuses, before anything is compared."""
        return Judgement(case, VerifyResult((), (reason,)), before=step)

    def _prepare(self, case: Case, folder: Path) -> PreparedModel:
        delivery, staging = folder / "delivery", folder / "staging"
        self._step = "deliver"
        inputs = case.inputs()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            deliver(
                case.module(),
                tuple(inputs.values()),
                delivery,
                name=case.slug,
                dynamic={name: {0: "batch"} for name in inputs} if case.batch else {},
                dimensions={"batch": case.batch} if case.batch else None,
                ranges=case.ranges,
                batch_invariant=case.rows_are_apart,
            )
        self._step = "inspect"
        take_in(IntakeJob(delivery, staging))
        assemble.refuse_unsound(traceability.run(TraceabilityJob(staging)))
        self._step = "optimize"
        optimized = optimize.run(OptimizeJob(staging, folder / "program", case.recipe))
        self._step = "reference"
        job = ReferenceJob(
            staging, optimized.reference, case.recipe.verify, folder / "reference.pt"
        )
        referred = reference.run(job)
        return PreparedModel(folder, optimized.program, referred.file, optimized.reference)

    def _with_operator(self, judged: Judgement, prepared: PreparedModel) -> Judgement:
        wrong = [d.case.partition(",")[0] for d in judged.result.deviations if d.reasons]
        if not wrong:
            return judged
        folder, recipe = prepared.folder, judged.case.recipe
        job = LocalizeJob(
            prepared.program, folder / "staging", prepared.reference, native_cpu_target(),
            recipe.options, recipe, folder / "localize", folder / "reproduction",
            cases=tuple(dict.fromkeys(wrong)), seconds=_LOCALIZE_S,
        )  # fmt: skip
        try:
            found = localize.run(job)
        except HandoffError as error:
            return replace(judged, blamed=str(error))
        operator = found.nodes[0].target if found.nodes else ""
        return replace(judged, operator=operator, blamed=found.verdict)

    def close(self) -> None:
        """End the process that verifies."""
        self._verifier.close()
