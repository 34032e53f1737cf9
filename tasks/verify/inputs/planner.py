"""The plan carried out: the inputs of each case, in order, as far as memory and time allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from handoff.artifacts.conformance.table import KnownFault
from handoff.artifacts.recipe.recipe import VerifyPlan
from handoff.tasks.intake.loading import LoadedDelivery
from handoff.tasks.verify.inputs.boundaries.cases import (
    BoundaryCase,
    find_boundary_cases,
    make_fault_case,
)
from handoff.tasks.verify.inputs.plan import (
    CaseSpec,
    eight_bit_cases,
    format_sizes,
    plan_cases,
    special_cases,
)
from handoff.tasks.verify.inputs.special import (
    EXTREMES,
    PARTS,
    UNDECLARED,
    ValueKind,
    dynamic_axes,
)

Tensors = tuple[torch.Tensor, ...]

# Up to how many bytes of intermediate results a size is run on special values.
_CHEAP_BYTES = 2**27
# Boundary cases are of the smallest size that has so many rows: they differ row by row.
_ROWS = 7
# In parts of what one case may take: two in float64, eager, and what is kept of them.
_AT_ONCE = 4
# All of the boundary cases together may make so many times the bytes that the drawn inputs do, or
# so many at the least.
_BOUNDARY_SHARE = 0.3
_LEAST_BYTES = 2**28


@dataclass(frozen=True)
class PlannedCase:
    """The inputs of a case, before anything has run."""

    name: str
    inputs: Tensors
    values: ValueKind = "drawn"
    axes: tuple[tuple[int, ...], ...] = ()
    undeclared: tuple[str, ...] = ()


class Planner:
    """Gives the inputs of the plan, and notes in `skipped` what is left out, and why.

    `fault_cases` has the names of the cases that show the `known` faults, by the faults' names.
    What a size takes is extrapolated from the smallest size, whose intermediate results `bytes_of`
    counts: they grow with the product of the dynamic dimensions for most models.
    """

    def __init__(
        self,
        delivery: LoadedDelivery,
        plan: VerifyPlan,
        known: Sequence[KnownFault],
        eager: Callable[..., Any],
        *,
        bytes_of: Callable[[Tensors], int],
        skipped: list[str],
    ) -> None:
        self.fault_cases: dict[str, str] = {}
        self._known_faults, self._plan, self._delivery = known, plan, delivery
        self._eager, self._bytes_of, self._skipped = eager, bytes_of, skipped
        self._signature = delivery.contract.signature
        self._bytes_per_unit = 0.0
        self._bytes_spent = 0.0

    def inputs(self) -> Iterator[PlannedCase]:
        """Give random draws, special values, boundary cases, and the delivery's examples."""
        cheap: list[CaseSpec] = []
        for spec in plan_cases(self._signature, self._plan.seeds):
            inputs = self._delivery.draw(spec)
            needed = self._estimate_bytes(spec.sizes, inputs)
            if needed > self._plan.max_bytes:
                if spec.seed == 0:
                    self._skipped.append(
                        f"{format_sizes(spec.sizes)}: about {needed / 2**30:.1f} GiB of "
                        "intermediate results, more than the plan's "
                        f"{self._plan.max_bytes / 2**30:.1f}"
                    )
                continue
            if not cheap or needed <= _CHEAP_BYTES:
                cheap.append(spec)
            self._bytes_spent += needed
            yield PlannedCase(spec.name, inputs)
        yield from self._special_inputs(cheap)
        yield from self._example_inputs()

    def _special_inputs(self, cheap: Sequence[CaseSpec]) -> Iterator[PlannedCase]:
        if not cheap:
            return
        boundary_spec = _choose_boundary_spec(cheap)
        text = format_sizes(boundary_spec.sizes)
        bytes_left = max(_LEAST_BYTES, _BOUNDARY_SHARE * self._bytes_spent)
        left_out = []
        # The largest of the cheap sizes: it has whole vectors and a rest.
        for spec in special_cases(self._signature, cheap[-1].sizes, EXTREMES):
            axes = tuple(map(dynamic_axes, self._signature.inputs))
            repeated = axes if spec.values == "repeated" else ()
            drawn = self._delivery.draw(spec)
            yield PlannedCase(
                spec.name, drawn, spec.values, repeated, self._undeclared_inputs(spec.values)
            )
        for planned, sizes in self._boundary_cases(boundary_spec):
            bytes_left -= self._estimate_bytes(sizes, planned.inputs)
            if bytes_left < 0:
                left_out.append(planned.name.removeprefix(text).strip())
            else:
                yield planned
        if left_out:
            self._skipped.append(
                f"{text} with these special values, which would take too much memory and time: "
                + ", ".join(left_out)
            )

    def _boundary_cases(
        self, boundary_spec: CaseSpec
    ) -> Iterator[tuple[PlannedCase, Mapping[str, int]]]:
        """Give the boundary cases of one size, and for reductions of 8 bits those of several."""
        drawn = self._delivery.draw(boundary_spec)
        cases, tracer = find_boundary_cases(self._signature.inputs, self._eager, drawn)
        for fault in self._known_faults:
            # First, so that no lack of room leaves it out.
            case = make_fault_case(fault, self._signature.inputs, drawn, tracer)
            if case is not None:
                planned = _plan_boundary_case(case, boundary_spec)
                self.fault_cases[fault.name] = planned.name
                yield planned, boundary_spec.sizes
        for spec in special_cases(self._signature, boundary_spec.sizes, PARTS):
            planned = PlannedCase(
                spec.name, self._delivery.draw(spec), spec.values,
                undeclared=self._undeclared_inputs(spec.values),
            )  # fmt: skip
            yield planned, spec.sizes
        for case in cases:
            yield _plan_boundary_case(case, boundary_spec), boundary_spec.sizes
        for spec in eight_bit_cases(self._signature) if tracer.eight_bit_reductions else ():
            yield PlannedCase(spec.name, self._delivery.draw(spec), spec.values), spec.sizes

    def _undeclared_inputs(self, values: ValueKind) -> tuple[str, ...]:
        if values not in UNDECLARED:
            return ()
        return tuple(
            spec.name for spec in self._signature.inputs
            if spec.is_unlimited
        )  # fmt: skip

    def _example_inputs(self) -> Iterator[PlannedCase]:
        signature = self._signature
        for index, case in enumerate(self._delivery.cases):
            shapes = zip(signature.inputs, case.inputs, strict=True)
            sizes = signature.measure({spec.name: tuple(t.shape) for spec, t in shapes})
            yield PlannedCase(f"{format_sizes(sizes)} example={index}", case.inputs)

    def is_large(self, inputs: Tensors) -> bool:
        """Return whether two like it in float64, and eager beside them, may be too much at once."""
        sizes = self._signature.measure_inputs(inputs)
        return self._estimate_bytes(sizes, inputs) > self._plan.max_bytes / _AT_ONCE

    def _estimate_bytes(self, sizes: Mapping[str, int], inputs: Tensors) -> float:
        """Return what the intermediate results of these sizes take."""
        units = math.prod(sizes.values())
        if not self._bytes_per_unit and units:
            self._bytes_per_unit = self._bytes_of(inputs) / units
        return self._bytes_per_unit * units


def _plan_boundary_case(case: BoundaryCase, spec: CaseSpec) -> PlannedCase:
    values: ValueKind = "asked far" if case.undeclared else "asked"
    if not all(bool(tensor.isfinite().all()) for tensor in case.inputs):
        values = "asked not finite"
    name = f"{format_sizes(spec.sizes)} {case.label}"
    return PlannedCase(name, case.inputs, values, undeclared=case.undeclared)


def _choose_boundary_spec(cheap: Sequence[CaseSpec]) -> CaseSpec:
    """Return the smallest of some sizes at which rows may differ."""
    for enough in (min, max):
        for spec in cheap:
            if enough(spec.sizes.values(), default=0) >= _ROWS:
                return spec
    return cheap[-1]
