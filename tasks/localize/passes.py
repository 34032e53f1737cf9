"""Finds the pass that changes what the model computes, on the inputs that showed it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.messages.localization import LocalizeJob
from handoff.tasks.intake import LoadedDelivery
from handoff.tasks.optimize.capture import capture
from handoff.tasks.optimize.check import PassCheck
from handoff.tasks.optimize.exporting import require_exportable
from handoff.tasks.optimize.passes import PASSES
from handoff.tasks.verify.loading import Tensors


def find_pass(job: LocalizeJob, delivery: LoadedDelivery, inputs: Tensors) -> tuple[str, str]:
    """Return the name of the first pass that breaks the tolerance on `inputs`, and what it does.

    The passes run again as in `tasks.optimize`, which has checked each on the plan's smallest
    sizes alone. Two empty strings stand for none: then the capture, or the precision in which a
    pass computes, is what differs.
    """
    recipe = replace(job.recipe, broken_passes="refuse")
    exportable = partial(require_exportable, delivery=delivery)
    check = PassCheck(recipe, [inputs], delivery.module, exportable)
    chosen = [(choice, PASSES[choice.name](choice.parameters)) for choice in recipe.passes]
    module = delivery.module
    name = ""
    try:
        for choice, made in chosen:
            if made.level == "fx":
                name = choice.name
                module, _ = check.apply(choice, made, module)
        program = capture(module, delivery.contract.signature, rows=delivery.rows)
        for choice, made in chosen:
            if made.level == "aten":
                name = choice.name
                program, _ = check.apply(choice, made, program)
    except BlessingRefused as refusal:
        return name, f"{refusal.what}: expected {refusal.expected}, got {refusal.got}"
    return "", ""
