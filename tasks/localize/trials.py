"""Compiles and runs programs in a child process, within a budget of compiles and seconds."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.export import ExportedProgram

from handoff.artifacts.errors import BlessingRefused, StepCrashed
from handoff.artifacts.recipe.target import compile_variables
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.localize.measure import JudgedOutput, judge, worst_fault
from handoff.tasks.localize.messages import LeaveOut, LocalizeJob, SubsystemUse, TrialJob
from handoff.tasks.localize.subgraph import Subgraph
from handoff.tasks.verify.loading import Tensors

Plain = dict[str, object]


class BudgetSpent(Exception):
    """There is no compile or no time left."""


@dataclass(frozen=True)
class Outcome:
    """What a trial gave: one tuple of outputs for each tuple of inputs, or why there is none.

    Outputs are flattened, in the shapes and dtypes that the package gives.
    """

    outputs: tuple[Tensors, ...] = ()
    uses: tuple[SubsystemUse, ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class PartResult:
    """A part of the program that was compiled alone, and how its outputs compared.

    `outputs` are what the package gave, flattened, in its own shapes and dtypes.
    """

    part: Subgraph
    judged: tuple[JudgedOutput, ...]
    uses: tuple[SubsystemUse, ...]
    failure: str = ""
    outputs: Tensors = ()

    @property
    def worst(self) -> JudgedOutput | None:
        """Return the output that is furthest off, or None where none is more so than eager's."""
        return worst_fault(self.judged)


class Trials:
    """The compilations that a localization may make, counted."""

    def __init__(self, job: LocalizeJob, began: float | None = None) -> None:
        """Start the process that compiles and runs, since that takes seconds.

        The budget's seconds count from `began` on (`time.monotonic()`), else from now on.
        """
        self.job = job
        self.made = 0
        # Compiles that are kept for what comes after the step that is under way.
        self.reserved = 0
        self.notes: list[str] = []
        self._deadline = (time.monotonic() if began is None else began) + job.seconds
        job.folder.mkdir(parents=True, exist_ok=True)
        plan = ProcessPlan(
            "trials", ("compile.step",), job.recipe.extensions, trial_environment(job),
            reads=(job.program, job.staging, *((job.shared,) if job.shared else ())),
            writes=(job.folder, Path(cache_dir())),
        )  # fmt: skip
        self._process = StepProcess(plan, job.folder / "trials.log")

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    @property
    def left(self) -> int:
        """The compiles that are left; 0 when the time is over."""
        left = self.job.compiles - self.made - self.reserved
        return max(0, left) if self.left_s > 0 else 0

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return self._deadline - time.monotonic()

    def spend(self) -> None:
        """Count one compile; raise `BudgetSpent` when there is none left."""
        if not self.left:
            raise BudgetSpent
        self.made += 1

    def attempt(
        self,
        program: ExportedProgram | Path,
        inputs: list[Tensors],
        options: Plain,
        left_out: tuple[LeaveOut, ...] = (),
    ) -> Outcome:
        """Compile and run a program; a refusal or a crash on the way is an outcome.

        It runs once on each tuple of `inputs`, of the program's shapes and dtypes. Raises
        `BudgetSpent` where the time is over before it ends, and `HandoffError` for what is no
        answer: a machine that lacks something, say.
        """
        self.spend()
        folder = self.job.folder / f"trial-{self.made}"
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(program, ExportedProgram):
            torch.export.save(program, folder / "program.pt2")
            program = folder / "program.pt2"
        torch.save(inputs, folder / "inputs.pt")
        trial = TrialJob(
            program, folder / "inputs.pt", folder / "outputs.pt", self.job.target,
            folder / "package", options, left_out, self.job.shared,
        )  # fmt: skip
        try:
            result = self._process.run(trial, limit_s=self.left_s)
        except (BlessingRefused, StepCrashed) as error:
            if isinstance(error, StepCrashed) and self.left_s <= 0.0:
                raise BudgetSpent from error
            kind = "was refused" if isinstance(error, BlessingRefused) else "failed"
            return Outcome(failure=f"trial {self.made} {kind}: {error.got[:300]}")
        outputs = torch.load(trial.outputs, weights_only=True)
        shutil.rmtree(folder)
        return Outcome(tuple(tuple(tensors) for tensors in outputs), result.uses)

    def compile_part(
        self, part: Subgraph, left_out: tuple[LeaveOut, ...] = (), options: Plain | None = None
    ) -> PartResult:
        """Compile a part of the program alone, on its right inputs, and judge what it gives.

        It is compiled with `options`, or with the job's where there are none.
        """
        options = self.job.options if options is None else options
        try:
            program = part.export()
        except Exception as error:  # noqa: BLE001 - a part that can't be exported shows nothing
            self.notes.append(
                f"a part of {len(part.nodes)} nodes can't be exported: {error!r:.200}"
            )
            return PartResult(part, (), (), "not exported")
        outcome = self.attempt(program, [part.inputs], options, left_out)
        if outcome.failure and any(part.dynamic) and not left_out:
            # The compiler may not be able to keep an axis open that the whole program keeps.
            self.notes.append(f"{outcome.failure}; tried with fixed sizes instead")
            fixed = replace(part, dynamic=tuple({} for _ in part.dynamic))
            return self.compile_part(fixed, left_out, options)
        if outcome.failure:
            self.notes.append(outcome.failure)
            return PartResult(part, (), (), outcome.failure)
        eager, float64 = part.run()
        judged = judge(
            "", outcome.outputs[0], eager, float64, self.job.recipe,
            conditioning=part.conditioning(eager),
        )  # fmt: skip
        return PartResult(part, tuple(judged), outcome.uses, outputs=outcome.outputs[0])


def trial_environment(job: LocalizeJob) -> dict[str, str]:
    """Return the variables that hold torch, oneDNN and MKL to the target's level."""
    return {
        **compile_variables(job.target),
        # What this process has found out about the machine by compiling is there.
        "TORCHINDUCTOR_CACHE_DIR": cache_dir(),
    }
