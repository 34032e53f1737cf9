"""Whose inputs show what is served: the calibration's, else the examples', else the plan's."""

from __future__ import annotations

from handoff.artifacts.delivery.contract import CALIBRATION_FILE
from handoff.tasks.intake.loading import LoadedDelivery
from handoff.tasks.optimize.passes.base import Calibration
from handoff.tasks.verify.inputs.plan import plan_cases

_CALIBRATION_HINT = "deliver(..., calibration=batches) brings more"


def choose_calibration(delivery: LoadedDelivery) -> Calibration:
    """Return the batches that show best what is served, with a word on whose they are."""
    if delivery.calibration:
        source = f"ranges of {len(delivery.calibration)} batches of {CALIBRATION_FILE}"
        return Calibration(delivery.calibration, source)
    if delivery.cases:
        source = f"ranges of the {len(delivery.cases)} examples alone: {_CALIBRATION_HINT}"
        return Calibration([case.inputs for case in delivery.cases], source)
    case, *_ = plan_cases(delivery.contract.signature, seeds=1)
    return Calibration([delivery.draw(case)], f"ranges of random inputs alone: {_CALIBRATION_HINT}")
