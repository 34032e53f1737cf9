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
from handoff.tasks.verify.compare import Typical
from handoff.tasks.verify.elements import ROOM_PER_ERROR, finite_in_all, root_mean_square
from handoff.tasks.verify.figures import measure
from handoff.tasks.verify.float64 import flat_tensors
from handoff.tasks.verify.loading import copies
from handoff.tasks.verify.reference import ReferenceCase


class Rounded:
    """The program in `file`, whose output at `place` is the metric's to judge."""

    def __init__(self, file: Path, place: int) -> None:
        """Read nothing yet."""
        self.place = place
        self._file = file
        self._eager: dict[str, torch.Tensor] = {}

    @cached_property
    def model(self) -> Callable[..., object]:
        """The program, to be called with the signature's inputs."""
        model: Callable[..., object] = load_program(self._file).module(check_guards=False)
        return model

    def beside(self, cases: Sequence[ReferenceCase]) -> tuple[ReferenceCase, ...]:
        """Return the cases with what the program gives for its output, in the place of eager's.

        Where eager's elements are not finite, or the program's aren't though eager's are, eager's
        stay: rounding is no reason for that.
        """
        return tuple(self._beside(case) for case in cases)

    def _beside(self, case: ReferenceCase) -> ReferenceCase:
        with torch.no_grad():
            given = flat_tensors(self.model(*copies(case.inputs)))
        eager, rounded = case.eager[self.place], given[self.place]
        if rounded.shape != eager.shape or rounded.dtype != eager.dtype:
            return case
        self._eager[case.name] = eager
        kept = torch.where(eager.isfinite() & rounded.isfinite(), rounded, eager)
        outputs = (*case.eager[: self.place], kept, *case.eager[self.place + 1 :])
        return replace(case, eager=outputs)

    def beside_eager(self, found: Deviation, case: ReferenceCase, got: torch.Tensor) -> Deviation:
        """Return the deviation with its figures to the delivered model: the judgement stays.

        `got` is what the package gives for the output, of any shape and dtype.
        """
        eager, exact = self._eager.get(case.name), case.float64[self.place]
        if eager is None or got.shape != eager.shape or got.dtype != eager.dtype:
            return found
        package, own, true = finite_in_all(got, eager, exact)
        apart = (package - own).abs()
        return replace(
            found,
            max_abs=float(apart.max()) if apart.numel() else 0.0,
            max_rel=float((apart / own.abs())[own != 0].max()) if bool((own != 0).any()) else 0.0,
            rmse_package=root_mean_square(package - true),
            rmse_eager=root_mean_square(own - true),
            figures=measure(got, eager, exact),
        )

    def eager(self, case: ReferenceCase) -> torch.Tensor:
        """Return eager's own output at the place: of any shape, in its own dtype."""
        return self._eager.get(case.name, case.eager[self.place])

    @staticmethod
    def tolerance(agreed: Tolerance, typical: Typical) -> Tolerance:
        """Return the tolerance with room for the rounding, whose usual size is `typical`."""
        return replace(
            agreed,
            atol=max(agreed.atol, ROOM_PER_ERROR * typical.rmse),
            rtol=max(agreed.rtol, ROOM_PER_ERROR * typical.relative),
        )
