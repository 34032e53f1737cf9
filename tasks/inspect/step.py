"""Traceability: would the delivered graph compute what was trained? A verdict with findings.

What the graph says is read off it, what it does is judged by running it: twice, at other sizes, on
other values, on part of a batch, on the golden outputs. What the files say (a module in training
mode, a weight that is NaN) the intake has already noticed.
"""

from __future__ import annotations

import torch

from handoff.artifacts.release.evidence import Finding, judge
from handoff.tasks.inspect import behaviour, graph
from handoff.tasks.inspect.goldens import compare_goldens
from handoff.tasks.inspect.messages import TraceabilityJob, TraceabilityResult
from handoff.tasks.inspect.origin import left_out, missing_lineage
from handoff.tasks.inspect.ranges import input_ranges
from handoff.tasks.intake.loading import LoadedDelivery, read_delivery
from handoff.tasks.timing.conditions import half_of_the_threads
from handoff.tasks.verify.plan import plan_cases


def run(job: TraceabilityJob) -> TraceabilityResult:
    """Return the verdict on the delivery in `job.staging`."""
    delivery = read_delivery(job.staging)
    with half_of_the_threads():
        findings = _examine(delivery)
    source = delivery.contract.source.completed(job.said)
    findings += missing_lineage(source, job.required_lineage)
    # An example that fails is found by each check that runs it.
    found = tuple(dict.fromkeys(findings))
    return TraceabilityResult(judge(found), found)


def _examine(delivery: LoadedDelivery) -> list[Finding]:
    module, first = delivery.module, _first_inputs(delivery)
    goldens = list(compare_goldens(delivery))
    # Several golden outputs that come out right show what a graph alone can't.
    proven = not goldens and len(delivery.cases) > 1
    return [
        *delivery.findings,
        *left_out(delivery.contract),
        *graph.unused_inputs(module),
        *graph.constant_outputs(module),
        *graph.burnt_in_constants(module, proven=proven),
        *graph.fixed_numbers(module, proven=proven),
        *graph.assumed_modes(module, proven=proven),
        *graph.values_read(module),
        *graph.float_ids(module, delivery.contract.inputs),
        *behaviour.run_twice(delivery, first),
        *input_ranges(delivery, first),
        *behaviour.other_sizes(delivery),
        *behaviour.other_values(delivery),
        *behaviour.rows_apart(delivery),
        *goldens,
    ]


def _first_inputs(delivery: LoadedDelivery) -> tuple[torch.Tensor, ...]:
    """Return the example's inputs; without one, inputs of the first size that the model runs at."""
    if delivery.cases:
        return delivery.cases[0].inputs
    # The largest sizes come last, and may be too large to be drawn on the way.
    cases = plan_cases(delivery.contract.signature, seeds=1)[:4]
    runs = (case for case in cases if behaviour.is_runnable(delivery.module, delivery.draw(case)))
    return delivery.draw(next(runs, cases[0]))
