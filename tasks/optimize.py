"""Optimize: the recipe's passes, each checked, with the capture between the two levels.

delivered graph module -> FX passes -> capture -> ATen passes -> exported program
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram

from artifacts.errors import BlessingRefused, UsageProblem
from artifacts.evidence import PassEffect
from artifacts.recipe import PassChoice, Recipe
from artifacts.steps import OptimizeJob, OptimizeResult
from tasks.capture import capture, describe_outputs
from tasks.compare import same_elements
from tasks.float64 import lifted_inputs, run_in_float64
from tasks.intake import LoadedDelivery, read_delivery
from tasks.passes import PASSES
from tasks.passes.base import Pass, PassBroken, apply_pass
from tasks.plan import plan_cases
from tasks.threads import half_of_the_threads

PROGRAM_FILE = "program.pt2"
REFERENCE_FILE = "reference.pt2"

Outputs = tuple[torch.Tensor, ...]


def run(job: OptimizeJob) -> OptimizeResult:
    """Write the optimized exported program of the delivery in `job.staging`."""
    with half_of_the_threads():
        return _optimize(job)


def _optimize(job: OptimizeJob) -> OptimizeResult:
    delivery = read_delivery(job.staging)
    signature = delivery.contract.signature
    chosen = [(choice, _make_pass(choice)) for choice in job.recipe.passes]
    first = [pair for pair in chosen if pair[1].level == "fx"]
    then = [pair for pair in chosen if pair[1].level == "aten"]
    if chosen != first + then:
        raise UsageProblem(
            "the recipe's passes are in an order that can't be run",
            expected="the passes on the FX graph before those on the ATen graph",
            got=", ".join(f"{p.name} ({p.level})" for _, p in chosen),
            remedy=f"Write them as {', '.join(p.name for _, p in first + then)}",
        )
    inputs = _check_inputs(delivery)
    module = delivery.module
    check = _PassCheck(job.recipe, run_in_float64(module, inputs)[0])
    effects = [
        check.apply(choice, p, module, lambda: run_in_float64(module, inputs)[0])
        for choice, p in first
    ]
    program = capture(module, signature, rows=delivery.rows)
    job.folder.mkdir(parents=True, exist_ok=True)
    reference = None
    if any(choice.intended for choice, _ in first):
        reference = _save(program, job.folder / REFERENCE_FILE)
    for choice, p in then:
        effects.append(check.apply(choice, p, program, lambda: _run_program(program, inputs)))
        if choice.intended:
            reference = _save(program, job.folder / REFERENCE_FILE)
    names = delivery.contract.structure.output_names
    outputs, computed = describe_outputs(program, signature, names)
    saved = _save(program, job.folder / PROGRAM_FILE)
    return OptimizeResult(saved, reference, outputs, computed, tuple(effects))


def _make_pass(choice: PassChoice) -> Pass[Any]:
    if choice.name not in PASSES:
        raise UsageProblem(
            "the recipe names a pass that doesn't exist",
            expected=f"one of {', '.join(sorted(PASSES))}",
            got=choice.name[:80],
            remedy="Mend the name in the recipe",
        )
    return PASSES[choice.name](choice.parameters)


def _check_inputs(delivery: LoadedDelivery) -> Outputs:
    # The second size: the first is the smallest, where a fault in a tail or a broadcast hides.
    cases = plan_cases(delivery.contract.signature, seeds=1)
    return delivery.draw(cases[min(1, len(cases) - 1)])


def _run_program(program: ExportedProgram, inputs: Outputs) -> Outputs:
    return run_in_float64(program.graph_module, lifted_inputs(program, inputs))[0]


def _save(program: ExportedProgram, path: Path) -> Path:
    torch.export.save(program, path)
    return path


class _PassCheck:
    """Holds the outputs before a pass, and compares those after it with them."""

    def __init__(self, recipe: Recipe, outputs: Outputs) -> None:
        self._recipe = recipe
        self._outputs = outputs

    def apply(
        self,
        choice: PassChoice,
        chosen: Pass[Any],
        program: torch.fx.GraphModule | ExportedProgram,
        compute: Callable[[], Outputs],
    ) -> PassEffect:
        """Apply the pass in place; raise `BlessingRefused` when it breaks the tolerance."""
        before = len(program.graph.nodes)
        try:
            modified = apply_pass(chosen, program)
        except PassBroken as error:
            raise _refusal(chosen, "the conditions that the pass states", str(error)) from error
        after = compute() if modified else self._outputs
        max_abs = self._compare(choice, chosen, after)
        self._outputs = after
        nodes = len(program.graph.nodes)
        return PassEffect(
            chosen.name, chosen.level, modified, before, nodes, max_abs, choice.intended
        )

    def _compare(self, choice: PassChoice, chosen: Pass[Any], after: Outputs) -> float:
        if [t.shape for t in after] != [t.shape for t in self._outputs]:
            raise _refusal(
                chosen,
                f"outputs of the shapes {[list(t.shape) for t in self._outputs]}",
                f"{[list(t.shape) for t in after]}",
            )
        largest = 0.0
        for index, (old, new) in enumerate(zip(self._outputs, after, strict=True)):
            # Float64 stands for every floating-point precision here, so float32's bound is used.
            kind = "float32" if old.is_floating_point() else str(old.dtype).removeprefix("torch.")
            bound = self._recipe.tolerance_for(kind)
            unequal = ~same_elements(new, old)
            # A NaN on one side alone is no small difference; equal infinities are none.
            difference = torch.where(unequal, (new.double() - old.double()).abs(), 0.0)
            difference = difference.nan_to_num(nan=math.inf, posinf=math.inf)
            same = torch.isclose(
                new.double(), old.double(), rtol=bound.rtol, atol=bound.atol, equal_nan=True
            )
            largest = max(largest, float(difference.max()) if old.numel() else 0.0)
            if not choice.intended and not bool(same.all()):
                raise _refusal(
                    chosen,
                    f"output {index} within atol {bound.atol:g} and rtol {bound.rtol:g} of before",
                    f"a difference of {float(difference.max()):.3g} in float64",
                )
        return largest


def _refusal(chosen: Pass[Any], expected: str, got: str) -> BlessingRefused:
    return BlessingRefused(
        f"the pass {chosen.name} changes what the model computes",
        expected=expected,
        got=got,
        remedy="Leave the pass out of the recipe, or mark it 'intended = true' if that is meant",
    )
