"""Finds which part of the compiler makes a small program wrong, by leaving parts of it out.

The order is CompilerBisector's from the back: without any lowering, what decompositions and graph
passes have made of the program runs in ATen's kernels. If it is right then, a lowering or the code
generated from it is wrong; if not, it was wrong before. Decompositions are left out together with
the lowerings, because Inductor refuses to lower an operator that it has a decomposition for. What
it is among the uses of the part is found by halving, as far as the budget lets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from handoff.artifacts.errors import BlessingRefused
from handoff.tasks.intake.loading import LoadedDelivery
from handoff.tasks.localize.messages import LeaveOut, LocalizeJob, Subsystem
from handoff.tasks.localize.trials import BudgetSpent, PartResult, Trials
from handoff.tasks.optimize.calibration import choose_calibration
from handoff.tasks.optimize.capture import capture
from handoff.tasks.optimize.check import PassCheck, covered_by_metric
from handoff.tasks.optimize.passes import PASSES
from handoff.tasks.optimize.programs import require_exportable
from handoff.tasks.verify.loading import Tensors

_PASSES: tuple[Subsystem, ...] = ("post_grad_passes", "joint_graph_passes", "pre_grad_passes")


@dataclass(frozen=True)
class CompilerCause:
    """The subsystem without which a part is right, and the one use of it, where that is known."""

    subsystem: Subsystem
    at: str = ""


def find_cause(trials: Trials, result: PartResult, *, is_option: bool) -> CompilerCause | None:
    """Return which subsystem makes the part wrong, or None where none alone does, or no budget.

    Where an option is known to be the cause (`is_option`) only what that may choose, a lowering,
    is looked into.
    """
    lowerings = LeaveOut("lowerings")
    try:
        if _is_right_without(trials, result, lowerings):
            return _narrow_down(trials, result, "lowerings")
        if is_option:
            return None
        if _is_right_without(trials, result, LeaveOut("decomposition"), lowerings):
            return _narrow_down(trials, result, "decomposition", lowerings)
        for subsystem in _PASSES:
            if _is_right_without(trials, result, LeaveOut(subsystem)):
                return _narrow_down(trials, result, subsystem)
    except BudgetSpent:
        trials.notes.append("the budget was spent before every part of the compiler was left out")
    return None


def _is_right_without(trials: Trials, result: PartResult, *left_out: LeaveOut) -> bool:
    used = {use.subsystem for use in result.uses}
    if left_out[0].subsystem not in used:
        return False
    again = trials.compile_part(result.part, left_out)
    return not again.failure and again.worst is None


def _narrow_down(
    trials: Trials, result: PartResult, subsystem: Subsystem, *besides: LeaveOut
) -> CompilerCause:
    """Find the first use of a subsystem with which the part is wrong, all later ones left out."""
    uses = [use for use in result.uses if use.subsystem == subsystem]

    def is_right(count_kept: int) -> bool:
        return _is_right_without(trials, result, LeaveOut(subsystem, first=count_kept), *besides)

    if (len(uses) - 1).bit_length() > trials.left:
        trials.notes.append(f"the budget does not reach to name one of {len(uses)} {subsystem}")
        return CompilerCause(subsystem)
    return CompilerCause(subsystem, uses[_first_wrong(len(uses), is_right)].what)


def _first_wrong(count: int, is_right: Callable[[int], bool]) -> int:
    """Return the place of the use that makes it wrong: right with those before, wrong with it."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if is_right(middle):
            low = middle
        else:
            high = middle
    return low


def find_pass(job: LocalizeJob, delivery: LoadedDelivery, inputs: Tensors) -> tuple[str, str]:
    """Return the name of the first pass that breaks the tolerance on `inputs`, and what it does.

    Those are of the signature's shapes and dtypes. The passes run again as in `tasks.optimize`,
    which has checked each on the plan's smallest sizes alone. Two empty strings stand for none:
    then the capture, or the precision in which a pass computes, is what differs.
    """
    recipe = replace(job.recipe, broken_passes="refuse")
    exportable = partial(require_exportable, delivery=delivery)
    check = PassCheck(
        recipe, [inputs], delivery.module, exportable, choose_calibration(delivery),
        metric_output_index=covered_by_metric(recipe, delivery),
    )  # fmt: skip
    chosen = [(choice, PASSES[choice.name](choice.parameters)) for choice in recipe.passes]
    module = delivery.module
    name = ""
    try:
        for choice, graph_pass in chosen:
            if graph_pass.level == "fx":
                name = choice.name
                module, _ = check.apply(choice, graph_pass, module)
        program = capture(module, delivery.contract.signature, rows=delivery.rows)
        for choice, graph_pass in chosen:
            if graph_pass.level == "aten":
                name = choice.name
                program, _ = check.apply(choice, graph_pass, program)
    except BlessingRefused as refusal:
        return name, f"{refusal.what}: expected {refusal.expected}, got {refusal.got}"
    return "", ""
