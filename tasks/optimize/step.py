"""Optimize: the recipe's passes, each checked, with the capture between the two levels.

delivered graph module -> FX passes -> capture -> ATen passes -> exported program
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram

from handoff.artifacts.delivery.signature import TensorSpec
from handoff.artifacts.errors import UsageProblem, first_line
from handoff.artifacts.recipe.choices import PassChoice
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.release.evidence import PassEffect
from handoff.tasks.conformance.lookup import calls_of
from handoff.tasks.intake.loading import LoadedDelivery, read_delivery
from handoff.tasks.optimize.calibration import choose_calibration
from handoff.tasks.optimize.capture import capture, describe_outputs
from handoff.tasks.optimize.check import (
    Exportable,
    PassCheck,
    covered_by_metric,
    require_enough_samples,
    snapshot,
)
from handoff.tasks.optimize.folding import fold_evidence
from handoff.tasks.optimize.messages import OptimizeJob, OptimizeResult
from handoff.tasks.optimize.passes import PASSES
from handoff.tasks.optimize.passes.base import Pass
from handoff.tasks.optimize.programs import (
    ExportBroken,
    is_data_dependent,
    require_exportable,
    save_program,
)
from handoff.tasks.timing.conditions import sharing_threads
from handoff.tasks.verify.inputs.plan import plan_cases
from handoff.tasks.verify.mha_fastpath import by_definition

PROGRAM_FILE = "program.pt2"
REFERENCE_FILE = "reference.pt2"

ChosenPass = tuple[PassChoice, Pass[Any]]

# A graph is no code yet: one element and two show what a pass may get wrong in a size.
_CHECKED_CASES = 2


@by_definition()
def run(job: OptimizeJob) -> OptimizeResult:
    """Write the optimized exported program of the delivery in `job.staging`."""
    with sharing_threads(1):
        return _optimize(job)


def _optimize(job: OptimizeJob) -> OptimizeResult:
    delivery = read_delivery(job.staging)
    chosen = [(choice, _make_pass(choice)) for choice in job.recipe.passes]
    fx_passes = [pair for pair in chosen if pair[1].level == "fx"]
    aten_passes = [pair for pair in chosen if pair[1].level == "aten"]
    if chosen != fx_passes + aten_passes:
        raise UsageProblem(
            "the recipe's passes are in an order that can't be run",
            expected="the passes on the FX graph before those on the ATen graph",
            got=", ".join(f"{p.name} ({p.level})" for _, p in chosen),
            remedy=f"Write them as {', '.join(p.name for _, p in fx_passes + aten_passes)}",
        )
    try:
        return _run_passes(job, delivery, fx_passes, aten_passes, is_each_exported=False)
    except ExportBroken:
        # Once more, to find out which pass it was, and to leave that one out.
        return _run_passes(job, delivery, fx_passes, aten_passes, is_each_exported=True)


def _run_passes(
    job: OptimizeJob,
    delivery: LoadedDelivery,
    fx_passes: Sequence[ChosenPass],
    aten_passes: Sequence[ChosenPass],
    *,
    is_each_exported: bool,
) -> OptimizeResult:
    """Run the passes, on the delivered graph first and on the captured one then; write it.

    Raises `ExportBroken` where that fails after a pass, unless each was held to it.
    """
    contract = delivery.contract
    module = snapshot(delivery.module)
    cases = plan_cases(contract.signature, seeds=1)[:_CHECKED_CASES]
    inputs = [delivery.draw(case) for case in cases]
    check = PassCheck(
        job.recipe, inputs, module, _make_export_check(delivery, is_each_exported),
        choose_calibration(delivery), metric_output_index=covered_by_metric(job.recipe, delivery),
    )  # fmt: skip
    effects = []
    for choice, p in fx_passes:
        module, effect = check.apply(choice, p, module)
        effects.append(effect)
    with _suspect_passes(effects, is_each_exported):
        program = capture(module, contract.signature, rows=delivery.rows)
    job.folder.mkdir(parents=True, exist_ok=True)
    reference = None
    if any(effect.intended and not effect.left_out for effect in effects):
        reference = save_program(program, job.folder / REFERENCE_FILE)
    for choice, p in aten_passes:
        program, effect = check.apply(choice, p, program)
        effects.append(effect)
        if effect.intended and not effect.left_out:
            with _suspect_passes(effects, is_each_exported):
                reference = save_program(program, job.folder / REFERENCE_FILE)
    outputs, computed = describe_outputs(program, contract.signature, contract.structure)
    _require_fitting(job.recipe, outputs, check.sizes)
    with _suspect_passes(effects, is_each_exported):
        saved = save_program(program, job.folder / PROGRAM_FILE)
    folded_effects, graphs = fold_evidence(effects, delivery.module, program, check.memory)
    calls = tuple(sorted(calls_of(program)))
    rounding = {p.name for _, p in (*fx_passes, *aten_passes) if p.rounds}
    rounds = any(effect.modified and effect.name in rounding for effect in effects)
    if rounds:
        require_enough_samples(job.recipe, delivery)
    return OptimizeResult(
        saved, reference, outputs, computed, folded_effects, graphs, calls, rounds
    )


def _require_fitting(recipe: Recipe, outputs: Sequence[TensorSpec], sizes: Sequence[float]) -> None:
    """Raise `UsageProblem` unless the recipe's tolerances name outputs and can be kept by them."""
    recipe.require_outputs(spec.name for spec in outputs)
    recipe.require_attainable(
        (spec.name, spec.dtype, size) for spec, size in zip(outputs, sizes, strict=True)
    )


def _make_export_check(delivery: LoadedDelivery, is_each_exported: bool) -> Exportable:
    """Return what holds every modified program to the export; or, since that takes seconds, some.

    Where sizes are known only when they are computed, nearly any change can break it, and writing
    the program doesn't show it.
    """

    def check(program: torch.fx.GraphModule | ExportedProgram) -> None:
        is_suspicious = isinstance(program, ExportedProgram) and is_data_dependent(program)
        if is_each_exported or is_suspicious:
            require_exportable(program, delivery)

    return check


@contextmanager
def _suspect_passes(effects: Sequence[PassEffect], is_each_exported: bool) -> Iterator[None]:
    """Raise `ExportBroken` for what fails inside, where a pass may be to blame for it."""
    try:
        yield
    except Exception as error:
        if is_each_exported or not any(effect.modified for effect in effects):
            raise
        raise ExportBroken(first_line(error)) from error


def _make_pass(choice: PassChoice) -> Pass[Any]:
    if choice.name not in PASSES:
        raise UsageProblem(
            "the recipe names a pass that doesn't exist",
            expected=f"one of {', '.join(sorted(PASSES))}",
            got=choice.name[:80],
            remedy="Fix the name in the recipe",
        )
    return PASSES[choice.name](choice.parameters)
