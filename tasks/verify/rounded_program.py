"""What a program that rounds on purpose is compared with, where a metric is agreed on.

A tolerance says little about int8: elements are off by what 256 steps leave of them, and whether
that matters is the metric's to say. What the compiler makes of the rounded program is compared all
the same: with what that program itself gives, to within what its rounding usually is. An error of
the compiler is no rounding, and shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from handoff.artifacts.recipe.tolerance import Deviation, Tolerance
from handoff.tasks.optimize.programs import load_program
from handoff.tasks.verify.compare import TypicalErrorSize
from handoff.tasks.verify.elements import ROOM_PER_ERROR, finite_in_all, root_mean_square
from handoff.tasks.verify.figures import measure
from handoff.tasks.verify.float64 import flatten_tensors
from handoff.tasks.verify.loading import clone_inputs
from handoff.tasks.verify.reference import ReferenceCase


class RoundedProgram:
    """The program in `file`, whose output at `index` is the metric's to judge."""

    def __init__(self, file: Path, index: int) -> None:
        """Read nothing yet."""
        self.index = index
        self._file = file
        self._eager: dict[str, torch.Tensor] = {}

    @cached_property
    def model(self) -> Callable[..., object]:
        """The program, to be called with the signature's inputs."""
        model: Callable[..., object] = load_program(self._file).module(check_guards=False)
        return model

    def with_program_outputs(self, cases: Sequence[ReferenceCase]) -> tuple[ReferenceCase, ...]:
        """Return the cases with what the program gives for its output, in the place of eager's.

        Where eager's elements are not finite, or the program's aren't though eager's are, eager's
        stay: rounding is no reason for that.
        """
        return tuple(self._with_program_output(case) for case in cases)

    def _with_program_output(self, case: ReferenceCase) -> ReferenceCase:
        with torch.no_grad():
            outputs = flatten_tensors(self.model(*clone_inputs(case.inputs)))
        eager, rounded = case.eager[self.index], outputs[self.index]
        if rounded.shape != eager.shape or rounded.dtype != eager.dtype:
            return case
        self._eager[case.name] = eager
        merged = torch.where(eager.isfinite() & rounded.isfinite(), rounded, eager)
        outputs = (*case.eager[: self.index], merged, *case.eager[self.index + 1 :])
        return replace(case, eager=outputs)

    def relate_to_eager(
        self, deviation: Deviation, case: ReferenceCase, got: torch.Tensor
    ) -> Deviation:
        """Return the deviation with its figures to the delivered model: the judgement stays.

        `got` is what the package gives for the output, of any shape and dtype.
        """
        eager, exact = self._eager.get(case.name), case.float64[self.index]
        if eager is None or got.shape != eager.shape or got.dtype != eager.dtype:
            return deviation
        package, delivered, float64 = finite_in_all(got, eager, exact)
        distance = (package - delivered).abs()
        return replace(
            deviation,
            max_abs=float(distance.max()) if distance.numel() else 0.0,
            max_rel=float((distance / delivered.abs())[delivered != 0].max())
            if bool((delivered != 0).any())
            else 0.0,
            rmse_package=root_mean_square(package - float64),
            rmse_eager=root_mean_square(delivered - float64),
            figures=measure(got, eager, exact),
        )

    def eager(self, case: ReferenceCase) -> torch.Tensor:
        """Return eager's own output at `index`: of any shape, in its own dtype."""
        return self._eager.get(case.name, case.eager[self.index])

    @staticmethod
    def tolerance(agreed: Tolerance, typical: TypicalErrorSize) -> Tolerance:
        """Return the tolerance with room for the rounding, whose usual size is `typical`."""
        return replace(
            agreed,
            atol=max(agreed.atol, ROOM_PER_ERROR * typical.rmse),
            rtol=max(agreed.rtol, ROOM_PER_ERROR * typical.relative),
        )
