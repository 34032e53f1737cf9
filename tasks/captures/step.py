"""Captures: what one capture technology makes of a delivered model; one row of the table."""

from __future__ import annotations

from handoff.artifacts.delivery.captures import CaptureRow
from handoff.tasks.captures.judging import try_road
from handoff.tasks.captures.messages import CaptureJob
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.verify.plan import plan_cases


def run(job: CaptureJob) -> CaptureRow:
    """Go the job's road with the delivered graph, as eager runs it."""
    delivery = read_delivery(job.staging)
    signature = delivery.contract.signature
    if delivery.cases:
        example = delivery.cases[0].inputs
    else:
        cases = plan_cases(signature, seeds=1)
        example = delivery.draw(cases[min(1, len(cases) - 1)])
    return try_road(job.road, delivery.module, signature, example, delivery.rows)
